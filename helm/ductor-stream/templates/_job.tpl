{{- /*
A Job that runs commands one after the other, each at most until the Job's deadline.
(dict "root" . "name" "migrate" "hook" "pre-install,pre-upgrade" "weight" "0" "commands" (list (list …) …) "secrets" … "kafkaOptions" … "database" bool)
*/ -}}
{{- define "ductor.job" -}}
{{- $root := .root -}}
{{- $jobs := $root.Values.jobs -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "ductor.fullname" $root }}-{{ .name }}{{ if not $jobs.hooks }}-{{ $root.Release.Revision }}{{ end }}
  labels: {{- include "ductor.labels" (dict "root" $root "part" .name "name" "") | nindent 4 }}
  {{- if $jobs.hooks }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-weight: {{ .weight | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
  {{- end }}
spec:
  {{- include "ductor.jobSpec" . | nindent 2 }}
{{- end -}}

{{- /* What a Job or a CronJob does: the same dict. */ -}}
{{- define "ductor.jobSpec" -}}
{{- $root := .root -}}
{{- $jobs := $root.Values.jobs -}}
{{- $shared := . -}}
{{- $last := sub (len .commands) 1 | int -}}
backoffLimit: 6
activeDeadlineSeconds: {{ $jobs.activeDeadlineSeconds }}
ttlSecondsAfterFinished: 86400
# A wrong setting (2) or a refusal (4) stays one; what cannot be reached (5) is tried again.
podFailurePolicy:
  rules:
  - action: FailJob
    onExitCodes: {operator: In, values: [2, 4]}
template:
  metadata:
    labels: {{- include "ductor.selector" (dict "root" $root "part" .name "name" "") | nindent 6 }}
  spec:
    {{- include "ductor.podBasis" $root | nindent 4 }}
    serviceAccountName: {{ $jobs.serviceAccountName }}
    restartPolicy: Never
    {{- range $index, $args := .commands }}
    {{- if and (eq $index 0) (lt $index $last) }}
    initContainers:
    {{- end }}
    {{- if eq $index $last }}
    containers:
    {{- end }}
    - name: {{ index $args 0 }}
      {{- include "ductor.containerBasis" $root | nindent 6 }}
      command: [ductor-stream]
      args: {{- toYaml $args | nindent 6 }}
      env: {{- include "ductor.env" (dict "root" $root "kafkaOptions" $shared.kafkaOptions "env" dict "secrets" $shared.secrets "database" $shared.database) | trim | nindent 6 }}
      resources: {{- toYaml $jobs.resources | nindent 8 }}
      volumeMounts: {{- include "ductor.volumeMounts" (dict "root" $root "secrets" $shared.secrets) | nindent 6 }}
    {{- end }}
    volumes: {{- include "ductor.volumes" (dict "root" $root "secrets" .secrets) | nindent 4 }}
{{- end -}}
