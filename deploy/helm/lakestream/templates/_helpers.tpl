{{- define "lakestream.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lakestream.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lakestream.labels" -}}
{{ include "lakestream.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "lakestream.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "lakestream.name" .) }}
{{- end }}

{{- define "lakestream.lake" -}}
{{ .Values.lake.url | default "/data/lake" }}
{{- end }}

{{- define "lakestream.compactorImage" -}}
{{ .Values.compactor.image.repository }}:{{ .Values.compactor.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "lakestream.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: ["ALL"]}
{{- end }}

{{- define "lakestream.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Variables from the secret and from values, for every container that reaches the lake. */}}
{{- define "lakestream.envFrom" -}}
{{- with .Values.envFromSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}

{{- /* The compactor's container: beside the server, or in a pod of its own. */}}
{{- define "lakestream.compactor" -}}
name: compactor
image: {{ include "lakestream.compactorImage" . | quote }}
imagePullPolicy: {{ .Values.compactor.image.pullPolicy }}
args: ["lakestream", "compact", "--create"]
{{- include "lakestream.envFrom" . }}
env:
  - {name: LAKESTREAM_LAKE, value: {{ include "lakestream.lake" . | quote }}}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- include "lakestream.securityContext" . | nindent 2 }}
livenessProbe:
  exec: {command: ["python", "/usr/local/share/lakestream/healthy.py", "compactor"]}
  initialDelaySeconds: 180
  periodSeconds: 60
  timeoutSeconds: 20
  failureThreshold: 5
resources:
  {{- toYaml .Values.compactor.resources | nindent 2 }}
{{- end }}
