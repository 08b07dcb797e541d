"""The images of a run: of nodes by the repository's Dockerfile; of Kafka and etcd, from the same
base, with the jars and the binary that `delayd dev up` runs. Named images take their place.

Images stay, so the next run finds its layers. The daemon pulls a base only if it is not here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from docker.errors import APIError, BuildError, DockerException

from chaos.backend import BackendError
from chaos.docker.plan import Images
from image.tar import install_servers

ROOT: Final = Path(__file__).parents[2]
NODE_TAG: Final = "delayd:chaos"
SERVERS_TAG: Final = "delayd-chaos-servers:chaos"
LINES_SHOWN: Final = 12

# A base with Java keeps its own.
SERVERS: Final = """ARG BASE
FROM ${BASE}
RUN command -v java >/dev/null || (apt-get update -q && \\
  apt-get install -q -y --no-install-recommends default-jre-headless && \\
  rm -rf /var/lib/apt/lists/*)
COPY tree /
"""
DEFAULT_BASE: Final = "python:3.12-slim"
"""The base that the Dockerfile names."""


def images(
    client: Any,
    tell: Callable[[str], None],
    base: str | None,
    named: Mapping[str, str | None],
) -> Images:
    """Build each image (`node`, `kafka`, `etcd`) that is not `named`; `base` None: on the
    Dockerfile's own. BackendError if a build fails, with the last lines of its output."""
    node, kafka, etcd = named["node"], named["kafka"], named["etcd"]
    if node is None:
        tell("building the image of nodes")
        arguments = {} if base is None else {"BASE": base}
        node = _built(client, NODE_TAG, ROOT, target="node", buildargs=arguments)
    if kafka is None or etcd is None:
        tell("building the image of Kafka and etcd")
        with TemporaryDirectory(prefix="delayd-chaos-servers-") as folder:
            install_servers(Path(folder) / "tree")
            (Path(folder) / "Dockerfile").write_text(SERVERS)
            arguments = {"BASE": base or DEFAULT_BASE}
            servers = _built(client, SERVERS_TAG, Path(folder), buildargs=arguments)
        kafka, etcd = kafka or servers, etcd or servers
    return Images(node, kafka, etcd)


def _built(client: Any, tag: str, folder: Path, **options: Any) -> str:
    try:
        # The network of this machine: the package installer may need its name server.
        client.images.build(
            path=str(folder), tag=tag, rm=True, forcerm=True, network_mode="host", **options
        )
    except BuildError as error:
        said = [str(line.get("stream", "")).strip() for line in error.build_log]
        raise BackendError(
            f"{tag}: {error}: {' / '.join(list(filter(None, said))[-LINES_SHOWN:])}"
        ) from error
    except (APIError, DockerException) as error:
        raise BackendError(f"{tag}: {error}") from error
    return tag
