"""Who is wrong about a message: a table."""

import pytest

from delayd.node.comparing.judging import By, Holding, Judgement, Logged, judge
from delayd.node.comparing.side import Value

V, W = Value(5_000, 1), Value(5_000, 2)
STORED, ABSENT = Logged(V, is_stored=True), Logged(None, is_stored=False)
MAYBE = Logged(V, is_stored=None)


def held(told: str) -> dict[str, Holding]:
    """`v`, `w`, `-` (nothing) and `2` (twice), of the nodes a, b, c ..."""
    values: dict[str, Holding] = {"v": (V,), "w": (W,), "-": (), "2": (V, V)}
    return {name: values[each] for name, each in zip("abcde", told, strict=False)}


@pytest.mark.parametrize(
    ("told", "logged", "by", "right", "wrong"),
    [
        ("-v", STORED, By.LOG, "b", "a"),
        ("v--", STORED, By.LOG, "a", "bc"),
        ("wvv", STORED, By.LOG, "bc", "a"),
        ("2v", STORED, By.LOG, "b", "a"),
        ("v-", ABSENT, By.LOG, "b", "a"),
        ("--", STORED, By.LOG, "", "ab"),
        ("wv", MAYBE, By.LOG, "b", "a"),
        ("w-", MAYBE, By.LOG, "", "a"),
        ("w--", MAYBE, By.LOG, "bc", "a"),
        ("ww-", MAYBE, By.LOG, "", "ab"),
        ("v-", MAYBE, By.NOBODY, "", ""),
        ("v--", MAYBE, By.MAJORITY, "bc", "a"),
        ("-vv", None, By.MAJORITY, "bc", "a"),
        ("-v", None, By.NOBODY, "", ""),
        ("-vw", None, By.NOBODY, "", ""),
        ("--vv", None, By.NOBODY, "", ""),
        ("-vvv", None, By.MAJORITY, "bcd", "a"),
        ("vv--v", None, By.MAJORITY, "abe", "cd"),
    ],
)
def test_the_log_decides_and_then_the_majority(
    told: str, logged: Logged | None, by: By, right: str, wrong: str
) -> None:
    expected = Judgement(by, frozenset(right), frozenset(wrong))
    assert judge(held(told), logged) == expected


@pytest.mark.parametrize(
    ("told", "replayed", "logged", "by", "right", "wrong"),
    [
        ("v--", "a", None, By.REPLAY, "a", "bc"),
        ("-vv", "a", MAYBE, By.REPLAY, "a", "bc"),
        ("vv-", "ab", None, By.REPLAY, "ab", "c"),
        ("v-", "ab", None, By.NOBODY, "", ""),
        ("v--", "d", None, By.MAJORITY, "bc", "a"),
        ("v--", "a", ABSENT, By.LOG, "bc", "a"),
    ],
)
def test_a_node_that_was_rebuilt_has_the_logs_word_against_a_majority(
    told: str, replayed: str, logged: Logged | None, by: By, right: str, wrong: str
) -> None:
    """docs/design/repairing.md, "Who repairs"."""
    expected = Judgement(by, frozenset(right), frozenset(wrong))
    assert judge(held(told), logged, set(replayed)) == expected
