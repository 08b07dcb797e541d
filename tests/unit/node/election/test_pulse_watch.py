"""Whose pulse a node listens to."""

import pytest

from delayd.node.election.pulse_line import Place

DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("admin", "place"),
    [
        ("node-1.nodes:7070", Place("node-1.nodes", 7070)),
        ("[::1]:7070", Place("[::1]", 7070)),
        (f"https://{DIGEST}@node-1.nodes:7070", Place("node-1.nodes", 7070, DIGEST)),
        ("https://node-1.nodes:7070", None),
        ("other://node-1.nodes:7070", None),
        (f"{DIGEST}@node-1.nodes:7070", None),
        ("node-1", None),
        ("", None),
    ],
)
def test_the_place_of_a_life_is_what_it_announces(admin: str, place: Place | None) -> None:
    """What is no address is not listened to: then the lease decides."""
    assert Place.of(admin) == place
