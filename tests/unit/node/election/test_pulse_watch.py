"""Whose pulse a node listens to."""

import pytest

from delayd.node.election.pulse_line import Place
from delayd.node.election.pulse_watch import _place


@pytest.mark.parametrize(
    ("admin", "place"),
    [
        ("node-1.nodes:7070", ("node-1.nodes", 7070)),
        ("[::1]:7070", ("[::1]", 7070)),
        (f"https://{'0' * 64}@node-1.nodes:7070", None),
        ("", None),
    ],
)
def test_a_master_with_tls_has_no_pulse_so_its_lease_decides(
    admin: str, place: Place | None
) -> None:
    """docs/operations.md, TLS on the admin port: nobody misses what cannot be heard."""
    assert _place(admin) == place
