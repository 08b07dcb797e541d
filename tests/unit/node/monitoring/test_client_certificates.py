"""A client's certificate in place of a token, over the real server with TLS.

Source: docs/operations.md, "Tokens".
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from api_node import READER, ApiNode, api_node, serving
from certificates import DAY, Authority, Leaf

from delayd.dev.ports import LOOPBACK
from delayd.node.monitoring.connections import names_of

REQUEST = {"topic": "orders", "value": "v", "delay": "1h"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        yield made


class Site:
    """Two authorities, of which the node believes the first."""

    def __init__(self, folder: Path, node: ApiNode) -> None:
        self.believed, self.other = (Authority(folder, name) for name in ("believed", "other"))
        self._own = self.believed.leaf("own")
        self._node = node

    @contextmanager
    def client(self, leaf: Leaf | None, token: str | None = None) -> Iterator[httpx.Client]:
        """Somebody who shows a certificate, a token, both or nothing."""
        trusting = ssl.create_default_context(cafile=str(self.believed.file))
        if leaf is not None:
            trusting.load_cert_chain(leaf.cert, leaf.key)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        tls = (self._own.cert, self._own.key, self.believed.file)
        with (
            serving(self._node, *tls) as port,
            httpx.Client(
                verify=trusting, base_url=f"https://{LOOPBACK}:{port}", headers=headers
            ) as made,
        ):
            yield made


@pytest.fixture
def site(tmp_path: Path, node: ApiNode) -> Site:
    return Site(tmp_path, node)


def test_a_certificate_that_the_file_names_is_as_good_as_its_token(site: Site) -> None:
    with site.client(site.believed.leaf("shop", common_name="shop.example")) as shop:
        assert shop.get("/v1/health").status_code == 200
        sent = shop.post("/v1/messages", json=REQUEST)
        assert sent.status_code == 201, sent.text
        refused = shop.post("/v1/messages", json={**REQUEST, "topic": "billing"})
        assert refused.status_code == 403 and refused.json()["code"] == "http-scope"
        redrive = shop.post("/v1/dead/redrive", json={"sources": ["0/0"]})
        assert redrive.status_code == 403, redrive.text


def test_a_certificate_that_the_file_does_not_name_is_nobody(site: Site) -> None:
    with site.client(site.believed.leaf("stranger")) as stranger:
        assert stranger.get("/v1/health").status_code == 401
        assert stranger.get("/livez").status_code == 200, "probes need nothing"
    with site.client(None) as nobody:
        assert nobody.get("/v1/health").status_code == 401


def test_a_token_counts_before_the_certificate(site: Site) -> None:
    leaf = site.believed.leaf("shop", common_name="shop.example")
    with site.client(leaf, READER) as reader:
        assert reader.get("/v1/health").status_code == 200
        assert reader.post("/v1/messages", json=REQUEST).status_code == 403
    with site.client(leaf, "a guess") as guessing:
        assert guessing.get("/v1/health").status_code == 401


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_certificate_that_is_not_believed_gets_no_connection(
    site: Site, *, is_expired: bool
) -> None:
    leaf = (
        site.believed.leaf("late", common_name="shop.example", lasts=-DAY)
        if is_expired
        else site.other.leaf("forged", common_name="shop.example")
    )
    with site.client(leaf) as forger, pytest.raises(httpx.TransportError):
        forger.get("/v1/health")


def test_names_are_common_names_dns_names_and_uris() -> None:
    certificate = {
        "subject": ((("organizationName", "o"),), (("commonName", "c"),)),
        "subjectAltName": (("DNS", "d"), ("URI", "spiffe://u"), ("IP Address", "127.0.0.1")),
    }
    assert names_of(certificate) == {"c", "d", "spiffe://u"}
    assert names_of({}) == frozenset()
