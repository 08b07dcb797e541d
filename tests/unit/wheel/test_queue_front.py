"""Where a queue in LevelDB begins: what was deleted is passed over, and nothing else."""

from delayd.wheel.layers import QueueFront


def test_it_moves_over_what_was_deleted_and_back_for_what_is_put() -> None:
    front = QueueFront(b"e")
    front.move_to(b"e5")
    assert front.first == b"e5"
    front.move_to(b"e3")
    assert front.first == b"e5"
    front.put(b"e2")
    assert front.first == b"e2"


def test_it_never_moves_over_what_is_not_in_leveldb_yet() -> None:
    """A scan does not see it there, so nobody has deleted it."""
    front = QueueFront(b"e")
    front.put(b"e4")
    front.move_to(b"e9")
    assert front.first == b"e4"
    front.capture()
    front.put(b"e6")
    front.move_to(b"e9")
    assert front.first == b"e4"
    front.settle()
    front.move_to(b"e9")
    assert front.first == b"e6"
    front.capture()
    front.settle()
    front.move_to(b"e9")
    assert front.first == b"e9"
