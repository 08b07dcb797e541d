"""The images of a run: of nodes by the repository's Dockerfile; of Kafka and etcd, from the same
base, with the jars and the binary that `delayd dev up` runs, or whatever images are named.

Images stay: the next run finds its layers there. Nothing is pulled but a base that is not here.
"""

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docker.errors import APIError, BuildError, DockerException

from chaos.backend import BackendError
from chaos.docker.plan import ETCD_BINARY, JARS, Images
from delayd.dev.etcd import etcd_binary
from delayd.dev.jars import cache_directory, kafka_jars
from delayd.runtime.java import find_java

ROOT: Final = Path(__file__).parents[2]
NODE_TAG: Final = "delayd:chaos"
SERVERS_TAG: Final = "delayd-chaos-servers:chaos"
LINES_SHOWN: Final = 12

# What the base has of Java is taken; both Kafka's and etcd's folders are those of their own images.
SERVERS: Final = f"""ARG BASE
FROM ${{BASE}}
RUN command -v java >/dev/null || (apt-get update -q && \\
  apt-get install -q -y --no-install-recommends default-jre-headless && \\
  rm -rf /var/lib/apt/lists/*)
COPY jars {JARS}
COPY etcd {ETCD_BINARY}
"""
DEFAULT_BASE: Final = "python:3.12-slim"
"""The Dockerfile's."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is named instead of being built; `base` None: the Dockerfile's own."""

    base: str | None = None
    node: str | None = None
    kafka: str | None = None
    etcd: str | None = None


def images(client: Any, wanted: Wanted, tell: Callable[[str], None]) -> Images:
    """Build what is not named. BackendError if that fails, with the end of what was said."""
    node, kafka, etcd = wanted.node, wanted.kafka, wanted.etcd
    if node is None:
        tell("building the image of nodes")
        arguments = {} if wanted.base is None else {"BASE": wanted.base}
        node = _built(client, NODE_TAG, path=str(ROOT), target="node", buildargs=arguments)
    if kafka is None or etcd is None:
        tell("building the image of Kafka and etcd")
        context = _servers_context()
        arguments = {"BASE": wanted.base or DEFAULT_BASE}
        servers = _built(
            client, SERVERS_TAG, fileobj=context, custom_context=True, buildargs=arguments
        )
        kafka, etcd = kafka or servers, etcd or servers
    return Images(node, kafka, etcd)


def _built(client: Any, tag: str, **options: Any) -> str:
    try:
        # The network of this machine: what installs may need its name server.
        client.images.build(tag=tag, rm=True, forcerm=True, network_mode="host", **options)
    except BuildError as error:
        said = [str(line.get("stream", "")).strip() for line in error.build_log]
        raise BackendError(
            f"{tag}: {error}: {' / '.join(list(filter(None, said))[-LINES_SHOWN:])}"
        ) from error
    except (APIError, DockerException) as error:
        raise BackendError(f"{tag}: {error}") from error
    return tag


def _servers_context() -> io.BytesIO:
    java = find_java(os.environ)
    cache = cache_directory(os.environ)
    jars = kafka_jars(java, cache, env=os.environ, progress=lambda _arrived: None)
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        text = SERVERS.encode()
        header = tarfile.TarInfo("Dockerfile")
        header.size = len(text)
        tar.addfile(header, io.BytesIO(text))
        # Without owners and times: the same files are the same layer.
        for file, name in (
            *((jar, f"jars/{jar.name}") for jar in sorted(jars.glob("*.jar"))),
            (etcd_binary(), "etcd"),
        ):
            header = tar.gettarinfo(file, name)
            header.uid = header.gid = header.mtime = 0
            header.uname = header.gname = ""
            header.mode = 0o755 if name == "etcd" else 0o644
            with file.open("rb") as content:
                tar.addfile(header, content)
    context.seek(0)
    return context
