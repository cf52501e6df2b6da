{{- define "ductor.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ductor.fullname" -}}
{{- $name := include "ductor.name" . -}}
{{- $whole := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $whole | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ductor.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "ductor.fullname" .) "default") -}}
{{- end -}}

{{- define "ductor.image" -}}
{{- $repository := required "image.repository: the image that has your app" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "ductor.app" -}}
{{- required "app: your app as MODULE:APP, such as shop:app" .Values.app -}}
{{- end -}}

{{- /* Labels that select: part (coordinator, worker) and, for workers, their name. Call with (dict "root" . "part" … "name" …). */ -}}
{{- define "ductor.selector" -}}
app.kubernetes.io/name: {{ include "ductor.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- if .name }}
ductor-stream/worker: {{ .name }}
{{- end }}
{{- end -}}

{{- define "ductor.labels" -}}
{{ include "ductor.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* The variable of an option: (dict "table" "KAFKA" "option" "sasl.password"). */ -}}
{{- define "ductor.variable" -}}
DUCTOR_{{ .table }}_{{ .option | upper | replace "." "_" }}
{{- end -}}

{{- /* All variables but the port, as a YAML map: (dict "root" . "kafkaOptions" … "env" … "secrets" … "database" bool). */ -}}
{{- define "ductor.variables" -}}
{{- $values := .root.Values -}}
{{- $found := dict "DUCTOR_KAFKA_BOOTSTRAP" (required "kafka.bootstrap: host:port of Kafka" $values.kafka.bootstrap) -}}
{{- $_ := set $found "DUCTOR_LOG_FORMAT" $values.log.format -}}
{{- $_ := set $found "DUCTOR_LOG_LEVEL" $values.log.level -}}
{{- with $values.namespace }}{{ $_ := set $found "DUCTOR_NAMESPACE" . }}{{ end -}}
{{- with $values.topicPrefix }}{{ $_ := set $found "DUCTOR_TOPIC_PREFIX" . }}{{ end -}}
{{- range $option, $value := merge (dict) (.kafkaOptions | default dict) $values.kafka.options -}}
{{- $_ := set $found (include "ductor.variable" (dict "table" "KAFKA" "option" $option)) ($value | toString) -}}
{{- end -}}
{{- if .database -}}
{{- range $option, $value := $values.database.options -}}
{{- $_ := set $found (include "ductor.variable" (dict "table" "DATABASE" "option" $option)) ($value | toString) -}}
{{- end -}}
{{- end -}}
{{- range $variable, $_ := .secrets -}}
{{- $_ := set $found (printf "%s_FILE" $variable) (printf "/etc/ductor/secrets/%s" $variable) -}}
{{- end -}}
{{- range $name, $value := merge (dict) (.env | default dict) $values.env -}}
{{- $_ := set $found $name ($value | toString) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "ductor.env" -}}
{{- range $name, $value := include "ductor.variables" . | fromYaml -}}
- name: {{ $name }}
  value: {{ $value | quote }}
{{ end -}}
{{- end -}}

{{- /* Where secrets and files are mounted: (dict "root" . "secrets" …). */ -}}
{{- define "ductor.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .secrets }}
- {name: secrets, mountPath: /etc/ductor/secrets, readOnly: true}
{{- end }}
{{- range .root.Values.mounts }}
- {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ductor.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .secrets }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- range $variable, $from := .secrets }}
    - secret:
        name: {{ $from.secret }}
        items: [{key: {{ $from.key | quote }}, path: {{ $variable }}}]
    {{- end }}
{{- end }}
{{- range .root.Values.mounts }}
- name: {{ .name }}
  {{- if .secret }}
  secret: {secretName: {{ .secret }}, defaultMode: 0440}
  {{- else }}
  configMap: {name: {{ .configMap }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* What a pod is beside its containers. */ -}}
{{- define "ductor.podBasis" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ductor.containerBasis" -}}
image: {{ include "ductor.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
workingDir: {{ .Values.workingDir }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{- /* The workers with all their values, by name. */ -}}
{{- define "ductor.workers" -}}
{{- $found := dict -}}
{{- range $name, $given := .Values.workers | default (dict "all" dict) -}}
{{- $_ := set $found $name (mergeOverwrite (deepCopy $.Values.workerDefaults) ($given | default dict)) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
