{{- define "clusterbroker.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "clusterbroker.selector" -}}
app.kubernetes.io/name: clusterbroker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "clusterbroker.labels" -}}
{{ include "clusterbroker.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "clusterbroker.secret" -}}
{{ .Values.existingSecret | default (include "clusterbroker.name" .) }}
{{- end }}

{{/* The founders, which never change: NAME@HOST:PORT, with commas. */}}
{{- define "clusterbroker.peers" -}}
{{- $name := include "clusterbroker.name" . -}}
{{- range $number := until (int .Values.founders) -}}
{{- if $number }},{{ end }}{{ $name }}-{{ $number }}@{{ $name }}-{{ $number }}.{{ $name }}-nodes:5673
{{- end -}}
{{- end }}

{{/* A value as TOML has it; a table stands in one line. */}}
{{- define "clusterbroker.toml" -}}
{{- if kindIs "map" . -}}
{{- $entries := list -}}
{{- range $name, $value := . -}}
{{- $entries = append $entries (printf "%s = %s" ($name | toJson) (include "clusterbroker.toml" $value)) -}}
{{- end -}}
{ {{ join ", " $entries }} }
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* The namespaces in which nodes make Pods of workers, as a list in JSON. */}}
{{- define "clusterbroker.namespaces" -}}
{{- $found := list -}}
{{- range $pool := .Values.pools -}}
{{- if eq (get $pool "driver") "kubernetes" -}}
{{- $found = append $found (get $pool "namespace" | default $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{ $found | uniq | toJson }}
{{- end }}
