{{- /*
A long-running process as a Deployment, or as a StatefulSet where its pods keep their names, with its disruption budget.
(dict "root" . "part" "worker" "name" "payments" "args" (list …) "is" <its values> "secrets" <all of them> "database" bool)
*/ -}}
{{- define "ductor.process" -}}
{{- $root := .root -}}
{{- $fullname := printf "%s-%s" (include "ductor.fullname" $root) .part -}}
{{- if .name }}{{ $fullname = printf "%s-%s" $fullname .name }}{{ end -}}
apiVersion: apps/v1
kind: {{ .is.stableNames | ternary "StatefulSet" "Deployment" }}
metadata:
  name: {{ $fullname }}
  labels: {{- include "ductor.labels" . | nindent 4 }}
spec:
  {{- if not (and .is.keda .is.keda.enabled) }}
  replicas: {{ .is.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  {{- if .is.stableNames }}
  serviceName: {{ include "ductor.fullname" $root }}-metrics
  podManagementPolicy: Parallel
  {{- else }}
  # A new one is ready before an old one goes.
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  {{- end }}
  minReadySeconds: 5
  selector:
    matchLabels: {{- include "ductor.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "ductor.selector" . | nindent 8 }}
        ductor-stream/serves: health
        {{- with .is.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .is.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "ductor.podBasis" $root | nindent 6 }}
      serviceAccountName: {{ include "ductor.serviceAccount" $root }}
      terminationGracePeriodSeconds: {{ .is.terminationGracePeriodSeconds }}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels: {{- include "ductor.selector" . | nindent 12 }}
      {{- with .is.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .is.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .is.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
      - name: {{ .part }}
        {{- include "ductor.containerBasis" $root | nindent 8 }}
        command: [ductor-stream]
        args: {{- toYaml .args | nindent 8 }}
        env:
        - name: DUCTOR_HEALTH_HOST
          value: "0.0.0.0"
        - name: DUCTOR_HEALTH_PORT
          value: {{ $root.Values.healthPort | quote }}
        {{- if .is.stableNames }}
        - name: DUCTOR_KAFKA_INSTANCE_ID
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- include "ductor.env" (dict "root" $root "kafkaOptions" .is.kafkaOptions "env" .is.env "secrets" .secrets "database" .database) | trim | nindent 8 }}
        ports:
        - {name: health, containerPort: {{ $root.Values.healthPort }}}
        # Only a process that answers nothing any more is restarted: one whose Kafka or Postgres is away waits for them,
        # and a restart would not bring them back.
        livenessProbe:
          httpGet: {path: /healthz, port: health}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet: {path: /readyz, port: health}
          periodSeconds: 5
          timeoutSeconds: 5
          failureThreshold: 2
        resources: {{- toYaml .is.resources | nindent 10 }}
        volumeMounts: {{- include "ductor.volumeMounts" (dict "root" $root "secrets" .secrets) | nindent 8 }}
      volumes: {{- include "ductor.volumes" (dict "root" $root "secrets" .secrets) | nindent 6 }}
{{- if .is.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $fullname }}
  labels: {{- include "ductor.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .is.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{- include "ductor.selector" . | nindent 6 }}
{{- end }}
{{- end -}}
