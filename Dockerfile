# An image with ductor_stream and one app in it, for coordinators, workers, migrations and topics alike.
#
#   docker build --build-arg APP=examples/orders -t orders .
#
# APP is the folder that has your modules; a requirements.txt in it is installed too. To build your own image without
# this repository, do the same with `pip install ductor-stream` in the place of the copied sources.

# The version that the tests run on.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /build
RUN python -m venv /opt/ductor
ENV PATH=/opt/ductor/bin:$PATH
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY schemas schemas
COPY examples/orders examples/orders
COPY docs/errors docs/errors
COPY ductor_stream ductor_stream
# EXTRAS=[registry] adds the client of a schema registry, [connectors,rules] what such steps need. The lock keeps to the versions that were tested.
ARG EXTRAS=
RUN pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock ".${EXTRAS}"
ARG APP=examples/orders
COPY ${APP} /app
RUN if [ -f /app/requirements.txt ]; then pip install --no-cache-dir --disable-pip-version-check -r /app/requirements.txt; fi

FROM python:${PYTHON}-slim
COPY --from=build /opt/ductor /opt/ductor
COPY --from=build /app /app
# In a container the port is the container's own; without this address no probe could reach it.
ENV PATH=/opt/ductor/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DUCTOR_LOG_FORMAT=json \
    DUCTOR_HEALTH_HOST=0.0.0.0 \
    DUCTOR_HEALTH_PORT=8080
WORKDIR /app
# A number, so that Kubernetes can see that it is not root. It needs no home and writes nothing.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["ductor-stream"]
CMD ["--help"]
