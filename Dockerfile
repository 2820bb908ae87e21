# Targets
#   operator   the operator and `steadyfleet`; runs as user 65532, needs no writable folder but the evidence volume
#   probe      two files and a shell to copy them with: the init container of probe pods
# Stages
#   build      installs exactly what uv.lock says into /opt/steadyfleet, and packs the probe
#
# BASE needs Python 3.11 or newer as python3, with venv; PROBE_BASE only /bin/sh and cp.
ARG BASE=python:3.11-slim
ARG PROBE_BASE=busybox:stable

FROM ${BASE} AS build
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir "uv>=0.5"
# UV_SYSTEM_CERTS: trust what the base image trusts, for those who build behind a proxy of their own.
ENV UV_PROJECT_ENVIRONMENT=/opt/steadyfleet UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_SYSTEM_CERTS=1
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN /opt/uv/bin/uv sync --quiet --frozen --no-dev --extra operator --no-install-project
COPY operator operator
COPY probe probe
RUN /opt/uv/bin/uv sync --quiet --frozen --no-dev --extra operator --no-editable
RUN /opt/steadyfleet/bin/steadyfleet probe-zip /probe

FROM ${BASE} AS operator
COPY --from=build /opt/steadyfleet /opt/steadyfleet
ENV PATH=/opt/steadyfleet/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/steadyfleet/bin/python", "-m", "steadyfleet_operator"]

FROM ${PROBE_BASE} AS probe
COPY --from=build /probe /probe
USER 65532:65532
# The one argument is the folder to fill.
ENTRYPOINT ["/bin/sh", "-c", "cp /probe/run /probe/probe.pyz \"$1\" && chmod 0555 \"$1/run\" && chmod 0444 \"$1/probe.pyz\"", "copy"]
