{{/* Names are fixed: marks are on Nodes, so there is one installation in a cluster. */}}

{{- define "steadyfleet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "steadyfleet.selectorLabels" . }}
{{- end }}

{{- define "steadyfleet.selectorLabels" -}}
app.kubernetes.io/name: steadyfleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Image reference of .Values.<part>.image; call with (dict "root" $ "part" "operator"). */}}
{{- define "steadyfleet.image" -}}
{{- $image := (index .root.Values .part).image -}}
{{- if not $image.repository }}
{{- fail (printf "%s.image.repository is required: build the Dockerfile's target `%s`, push the image, and name its repository here" .part .part) }}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* JSON list of the namespaces whose checks are run. */}}
{{- define "steadyfleet.checkNamespaces" -}}
{{ .Values.checkNamespaces | default (list .Release.Namespace) | toJson }}
{{- end }}

{{/* JSON list of the namespaces whose checks may mark. */}}
{{- define "steadyfleet.markNamespaces" -}}
{{- $checked := include "steadyfleet.checkNamespaces" . | fromJsonArray -}}
{{- range .Values.markNamespaces }}
{{- if not (has . $checked) }}
{{- fail (printf "markNamespaces: %q is not in checkNamespaces, so that its checks would never be run; add it there" .) }}
{{- end }}
{{- end -}}
{{- if .Values.markNamespaces -}}
{{ .Values.markNamespaces | toJson }}
{{- else if has .Release.Namespace $checked -}}
{{ list .Release.Namespace | toJson }}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{- define "steadyfleet.priorityClass" -}}
{{- if .Values.probe.priorityClass.create -}}
steadyfleet-probe-minus-{{ mul -1 (int .Values.probe.priorityClass.value) }}
{{- else -}}
{{ .Values.probe.priorityClass.name | required "probe.priorityClass.name is required when probe.priorityClass.create is false" }}
{{- end -}}
{{- end }}

{{/* Fails unless the cluster serves the Prometheus Operator's kind; call with (dict "root" $ "value" ... "kind" ...). */}}
{{- define "steadyfleet.requireMonitoring" -}}
{{- $api := printf "monitoring.coreos.com/v1/%s" .kind }}
{{- if not (.root.Capabilities.APIVersions.Has $api) }}
{{- fail (printf "%s is true, but the cluster does not serve %s: install the Prometheus Operator first, or set it to false (with `helm template`, add --api-versions %s)" .value $api $api) }}
{{- end }}
{{- end }}

{{- define "steadyfleet.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "steadyfleet.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What settings.py reads. The cleanup Job gets the same. */}}
{{- define "steadyfleet.environment" -}}
- name: STEADYFLEET_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: STEADYFLEET_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: STEADYFLEET_PROBE_IMAGE
  value: {{ include "steadyfleet.image" (dict "root" . "part" "probe") | quote }}
- name: STEADYFLEET_PROBE_IMAGE_PULL_POLICY
  value: {{ .Values.probe.image.pullPolicy | quote }}
- name: STEADYFLEET_CHECK_NAMESPACES
  value: {{ include "steadyfleet.checkNamespaces" . | fromJsonArray | join "," | quote }}
- name: STEADYFLEET_MARK_NAMESPACES
  value: {{ include "steadyfleet.markNamespaces" . | fromJsonArray | join "," | quote }}
- name: STEADYFLEET_PRIORITY_CLASS
  value: {{ include "steadyfleet.priorityClass" . | quote }}
- name: STEADYFLEET_REPORT_URL
  value: {{ printf "https://steadyfleet-report.%s.svc:8443" .Release.Namespace | quote }}
- name: STEADYFLEET_REPORT_PORT
  value: "8443"
- name: STEADYFLEET_METRICS_PORT
  value: "8080"
- name: STEADYFLEET_EVIDENCE_DIR
  value: /evidence
- name: STEADYFLEET_LEASE_NAME
  value: steadyfleet-operator
- name: STEADYFLEET_LEASE_SECONDS
  value: {{ .Values.operator.leaseSeconds | quote }}
- name: STEADYFLEET_TLS_SECRET_NAME
  value: steadyfleet-report-tls
- name: STEADYFLEET_DRY_RUN
  value: {{ .Values.dryRun | quote }}
{{- end }}
