# Targets
#   operator   the operator, and the command `steadyfleet`; user 65532, writes to nothing but /evidence and /tmp
#   probe      init container of probe pods: copies the probe into the folder given as its one argument
# Stages
#   build      installs into /opt/steadyfleet exactly what uv.lock says, and packs the probe into /probe; none of its tools
#              gets into a target
#
# BASE needs Python 3.11 or newer as python3, with venv, in both stages at the same path; PROBE_BASE only /bin/sh and cp.
ARG BASE=python:3.11-slim
ARG PROBE_BASE=busybox:stable

FROM ${BASE} AS build
ARG UV_VERSION=0.13.9
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet "uv==${UV_VERSION}"
# UV_SYSTEM_CERTS: trust what the base image trusts, for those who build behind a proxy of their own.
ENV UV_PROJECT_ENVIRONMENT=/opt/steadyfleet UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_SYSTEM_CERTS=1
WORKDIR /src
# The dependencies are a layer of their own: they change less often than our code.
COPY pyproject.toml uv.lock ./
RUN /opt/uv/bin/uv sync --quiet --frozen --no-dev --extra operator --no-install-project
COPY README.md LICENSE ./
COPY operator operator
COPY probe probe
RUN /opt/uv/bin/uv sync --quiet --frozen --no-dev --extra operator --no-editable
RUN /opt/steadyfleet/bin/steadyfleet probe-zip /probe

FROM ${BASE} AS operator
COPY --from=build /opt/steadyfleet /opt/steadyfleet
ENV PATH=/opt/steadyfleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["/opt/steadyfleet/bin/python", "-m", "steadyfleet_operator"]

FROM ${PROBE_BASE} AS probe
COPY --from=build /probe /probe
USER 65532:65532
ENTRYPOINT ["/bin/sh", "-c", "cp /probe/run /probe/probe.pyz \"$1\" && chmod 0555 \"$1/run\" && chmod 0444 \"$1/probe.pyz\"", "copy"]
