# The image of one node, and with `--target audit` that of an audit, which has Spark and Java.
# docs/operations.md says how they are run, chaos/README.md how their base is made where no registry
# can be reached.
#   docker build -t delayd .
#   docker build -t delayd-audit --target audit .
#   docker run -v /srv/delayd:/data -e DELAYD_BOOTSTRAP=... -e DELAYD_ETCD=... \
#       -e DELAYD_CLUSTER_KEY=... delayd
# BASE is any image with the Python 3.11 or 3.12 of its distribution or its own, and with its venv.
# `make image-tar` makes the same without a daemon (image/tar.py).
ARG PYTHON=3.12
ARG BASE=python:${PYTHON}-slim

FROM ${BASE} AS build
WORKDIR /src
# Wheels of `make wheels`, if there are any, are all that is installed: no index is asked then.
COPY pyproject.toml hatch_build.py README.md LICENSE build/wheel[s]/*.whl ./
COPY delayd ./delayd
COPY native ./native
COPY replication ./replication
COPY image/slim.sh ./
# Wheels only, but for delayd's own native library: a compiler, if the base has none and can get one, stays
# in this stage. Without one the image runs in Python. A node that has lost too much fails here.
RUN command -v cc >/dev/null \
 || (apt-get update -q && apt-get install -q -y --no-install-recommends gcc libc6-dev) || true
RUN python3 -m venv /opt/delayd \
 && if ls ./*.whl >/dev/null 2>&1; then offline="--no-index --find-links ."; fi \
 && /opt/delayd/bin/pip install --no-cache-dir --disable-pip-version-check \
      --only-binary :all: ${offline:-} . \
 && rm /opt/delayd/bin/pip* \
 && sh slim.sh /opt/delayd/lib/python3*/site-packages \
 && /opt/delayd/bin/python -c "import delayd.commands.cli, delayd.node.node, zstandard; \
from pathlib import Path; from delayd.node.export.rows import PendingFile; \
PendingFile(Path('/tmp/export')).finish(node='build', step=0)"

FROM ${BASE} AS node
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delayd" \
      org.opencontainers.image.description="A node of delayd: delayed messages for Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
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
# Do the loops turn? Never whether Kafka and etcd are there: a restart would mend neither.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection(os.environ['DELAYD_ADMIN_HOST'], int(os.environ.get('DELAYD_ADMIN_PORT', '7070')), timeout=4); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["delayd"]
CMD ["node"]

FROM ${BASE} AS build-audit
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE build/wheel[s]/*.whl ./
COPY delayd ./delayd
COPY native ./native
COPY replication ./replication
COPY image/slim.sh ./
# Of pyspark there is no wheel in the index: it is Python and jars, and nothing is compiled.
RUN python3 -m venv /opt/delayd \
 && if ls ./*.whl >/dev/null 2>&1; then from="--no-index --find-links ."; fi \
 && /opt/delayd/bin/pip install --no-cache-dir --disable-pip-version-check \
      --only-binary :all: ${from:---no-binary pyspark} '.[audit]' \
 && rm /opt/delayd/bin/pip* \
 && sh slim.sh /opt/delayd/lib/python3*/site-packages \
 && /opt/delayd/bin/python -c "import delayd.audit.run, pyspark.sql.pandas.types"

FROM ${BASE} AS audit
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="delayd-audit" \
      org.opencontainers.image.description="The audit of delayd: delayed messages for Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Spark asks the system for the name of who runs it.
RUN (command -v java >/dev/null \
  || (apt-get update -q \
   && apt-get install -q -y --no-install-recommends default-jre-headless \
   && rm -rf /var/lib/apt/lists/*)) \
 && echo "delayd:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd
COPY --from=build-audit /opt/delayd /opt/delayd
ENV PATH=/opt/delayd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["delayd"]
CMD ["audit", "--help"]

# What is built if no target is named. Builders that build every stage up to the one that is asked for
# need `--target node`, or they build the audit's too.
FROM node
