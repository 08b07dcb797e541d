# One node. Not built by the project's own tests: they have no image registry at hand.
#   docker build --build-arg PYTHON=3.12 -t delayd .
#   docker run -v /srv/delayd:/data -e DELAYD_BOOTSTRAP=... -e DELAYD_ETCD=... delayd
ARG PYTHON=3.12
ARG BASE=python:${PYTHON}-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY delayd ./delayd
COPY replication ./replication
RUN python -m venv /opt/delayd \
 && /opt/delayd/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM ${BASE}
COPY --from=build /opt/delayd /opt/delayd
ENV PATH=/opt/delayd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DELAYD_DATA_DIR=/data \
    DELAYD_ADMIN_HOST=0.0.0.0
RUN mkdir /data && chown 65532:65532 /data
VOLUME /data
USER 65532:65532
EXPOSE 7070
STOPSIGNAL SIGTERM
ENTRYPOINT ["delayd"]
CMD ["node"]
