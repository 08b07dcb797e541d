"""An etcd that lets in not everybody: every call of the port, and what is told when it refuses."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from guarded_etcd import PASSWORD, GuardedEtcd, guarded_etcd, until_answering

from delayd.cluster.connect import open_coordination
from delayd.config.security import Security
from delayd.coordination.etcd import EtcdCoordination
from delayd.errors import ConfigError, EtcdUnreachableError, ExitCode

pytestmark = pytest.mark.real

WRONG = "wrong-guess-77"
TIMEOUT_MS = 5_000
REFUSED_MS = 1_500
"""etcd takes its time over a password, by design."""
TTL_S = 5


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEtcd]:
    with guarded_etcd(tmp_path_factory.mktemp("guarded-etcd")) as found:
        yield found


def opened(etcd: GuardedEtcd, **keys: Any) -> EtcdCoordination:
    """As a node does it, with more patience."""
    coordination = open_coordination([etcd.url], "guarded", Security(**{**etcd.keys(), **keys}))
    coordination._timeout_ms = TIMEOUT_MS
    return coordination


def test_every_call_gets_through(etcd: GuardedEtcd) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    with closing(opened(etcd)) as coordination:
        coordination.check_reachable(TIMEOUT_MS)
        lease = coordination.grant_lease(TTL_S)
        leadership = coordination.campaign(0, "me", lease.id)
        assert coordination.leader(0) == leadership
        assert coordination.keep_alive(lease.id) == lease.ttl_ms
        assert coordination.put_cursor(0, leadership, "now")
        assert coordination.cursor(0) == "now"
        assert coordination.put_progress(0, leadership, b"far", after=0) is not None
        stored = coordination.progress(0, leadership)
        assert stored is not None and stored.value == b"far"
        coordination.put_member("n1", "here", lease.id)
        assert coordination.members() == {"n1": "here"}
        coordination.put_settings("{}")
        coordination.revoke(lease.id)
        assert coordination.leader(0) is None


def test_a_token_that_etcd_forgot_is_asked_for_again(etcd: GuardedEtcd) -> None:
    """A restarted etcd knows none; what it refuses for that it has not done."""
    with closing(opened(etcd)) as coordination:
        coordination.put_settings("before")
        [client] = coordination._idle
        assert client.session.headers["Authorization"]
        client.session.headers["Authorization"] = "a-token-of-yesterday"
        coordination.put_settings("after")
        assert coordination._idle == [client], "the same connection"
        etcd.restart()
        until_answering(lambda: coordination.put_settings("after the restart"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"etcd_password": WRONG}, "correct etcd_user and etcd_password"),
        ({"etcd_user": "nobody"}, "correct etcd_user and etcd_password"),
        ({"etcd_user": None, "etcd_password": None}, "give delayd an etcd_user"),
        ({"etcd_ca_file": "{other_ca}"}, "check that an authority in etcd_ca_file signed"),
        ({"etcd_cert_file": None, "etcd_key_file": None}, "etcd refuses this client's certificate"),
        (
            {"etcd_cert_file": "{expired.cert}", "etcd_key_file": "{expired.key}"},
            "etcd refuses this client's certificate",
        ),
        (
            {"etcd_cert_file": "{named.cert}", "etcd_key_file": "{named.key}"},
            "without a common name",
        ),
    ],
    ids=[
        *("password", "user", "no user", "authority", "no certificate", "expired certificate"),
        "certificate with a name",
    ],
)
def test_a_refusal_is_told_with_what_to_do_and_without_any_secret(
    etcd: GuardedEtcd,
    changes: dict[str, str | None],
    says: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    caplog.set_level("DEBUG")
    files = {"other_ca": etcd.other_ca, "expired": etcd.expired, "named": etcd.named}
    keys = {key: None if value is None else value.format(**files) for key, value in changes.items()}
    told: list[str] = []
    with closing(opened(etcd, **keys)) as coordination:
        # A busy machine may leave etcd no time to say why.
        for _ in range(5):
            with pytest.raises(EtcdUnreachableError) as raised:
                coordination.check_reachable(REFUSED_MS)
            assert raised.value.exit_code is ExitCode.UNREACHABLE
            told.append(str(raised.value))
            if says in told[-1]:
                break
    assert says in told[-1]
    said = f"{told} {caplog.text} {capfd.readouterr()}"
    assert PASSWORD not in said and WRONG not in said


def test_a_certificate_for_an_endpoint_without_tls_is_a_mistake(etcd: GuardedEtcd) -> None:
    with pytest.raises(ConfigError, match="https://"):
        open_coordination(["http://127.0.0.1:1"], "guarded", Security(**etcd.keys()))


def test_an_endpoint_that_wants_tls_and_is_asked_without_says_so(etcd: GuardedEtcd) -> None:
    plain = open_coordination([etcd.url.replace("https", "http")], "guarded", Security())
    with closing(plain), pytest.raises(EtcdUnreachableError, match="https://"):
        plain.check_reachable(REFUSED_MS)
