{{/* Base name of all objects. */}}
{{- define "onceguard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "onceguard" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-onceguard" (.Release.Name | trunc 30 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "onceguard.webhookName" -}}{{ include "onceguard.fullname" . }}-webhook{{- end -}}

{{- define "onceguard.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "onceguard.webhookName" .) -}}
{{- else -}}
{{- required "serviceAccount.name: needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "onceguard.engineName" -}}{{ include "onceguard.fullname" . }}-engine{{- end -}}

{{- define "onceguard.engineServiceAccountName" -}}
{{- if .Values.engine.serviceAccount.create -}}
{{- .Values.engine.serviceAccount.name | default (include "onceguard.engineName" .) -}}
{{- else -}}
{{- required "engine.serviceAccount.name: needed when engine.serviceAccount.create is false" .Values.engine.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Who makes the engine's requests, as the API server names it. */}}
{{- define "onceguard.engineUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "onceguard.engineServiceAccountName" . }}
{{- end -}}

{{/* Name of the webhook configuration for Jobs of the engine; empty without an engine. */}}
{{- define "onceguard.jobsConfig" -}}
{{- if .Values.engine.enabled }}00-{{ include "onceguard.fullname" . }}-jobs{{ end -}}
{{- end -}}

{{/* Name of the Secret in which the program keeps its own certificate authority. */}}
{{- define "onceguard.certSecret" -}}{{ include "onceguard.webhookName" . }}-ca{{- end -}}

{{/* What never changes over upgrades: usable as a selector. */}}
{{- define "onceguard.selectorLabels" -}}
app.kubernetes.io/name: onceguard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: webhook
{{- end -}}

{{- define "onceguard.engineSelectorLabels" -}}
app.kubernetes.io/name: onceguard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engine
{{- end -}}

{{- define "onceguard.labels" -}}
app.kubernetes.io/name: onceguard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image's reference. Call with (dict "image" .Values.x "root" $). */}}
{{- define "onceguard.image" -}}
{{- $registry := .root.Values.imageRegistry | default .image.registry -}}
{{- with $registry }}{{ . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* Namespaces in which nothing is ever guarded, as a JSON list. */}}
{{- define "onceguard.excludedNamespaces" -}}
{{- concat (.Values.excludedNamespaces | default list) (list .Release.Namespace) | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "onceguard.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "onceguard.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
