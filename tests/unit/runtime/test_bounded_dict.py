"""A bounded dictionary: what was used last is kept."""

from delayd.runtime.bounded_dict import BoundedDict


def test_the_entry_that_was_used_longest_ago_goes_first() -> None:
    evicted: list[tuple[str, int]] = []
    known = BoundedDict[str, int](3, lambda *entry: evicted.append(entry))
    known.update(a=1, b=2, c=3)
    known["a"] = 4
    known.move_to_end("b")
    known["d"] = 5
    assert list(known.items()) == [("a", 4), ("b", 2), ("d", 5)]
    assert evicted == [("c", 3)]


def test_a_lower_limit_holds_from_the_next_entry_on() -> None:
    known = BoundedDict[int, None](10)
    known.update(dict.fromkeys(range(10)))
    known.limit = 2
    known[10] = None
    assert list(known) == [9, 10]
