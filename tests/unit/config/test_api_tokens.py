"""The file of tokens: what it says, and what is refused in it (docs/operations.md, "Tokens")."""

import re
from pathlib import Path

import pytest

from delayd.config.api_tokens import ANONYMOUS, ApiTokens, Scope, digest_of
from delayd.errors import ConfigError

ONE = f"""
[[token]]
name = "one"
sha256 = "{digest_of("the first token")}"
scopes = ["read", "schedule"]
targets = ["orders-*", "billing"]
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "tokens.toml"
    file.write_text(text)
    return file


def test_a_token_has_its_scopes_and_targets(tmp_path: Path) -> None:
    tokens = ApiTokens.read(written(tmp_path, ONE))
    found = tokens.of("the first token")
    assert found is not None and found.name == "one" and found.is_limited
    assert found.scopes == {Scope.READ, Scope.SCHEDULE}
    covered = {name: found.covers(name) for name in ("orders-eu", "billing", "orders", "Billing")}
    assert covered == {"orders-eu": True, "billing": True, "orders": False, "Billing": False}
    assert not found.covers(None), "what is not known may be another's"
    assert [tokens.of(shown) for shown in ("", "the first token ", str(found.sha256))] == [None] * 3


def test_without_targets_all_are_covered_and_nobody_knows_a_token_by_its_digest() -> None:
    assert ANONYMOUS.covers("anything") and ANONYMOUS.covers(None)
    assert ApiTokens().of("") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("one", "no name"), "name"),
        (('"read", "schedule"', '"write"'), "scopes"),
        (('"read", "schedule"', ""), "scopes"),
        (("sha256", "token"), "token"),
        (("scopes", 'certificate = "a.example"\nscopes'), "either sha256 or certificate"),
        (('sha256 = "', 'sha256 = "x'), "sha256"),
        (("[[token]]", "[token]"), "token"),
        (("targets", "target"), "target"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    file = written(tmp_path, ONE.replace(*change, 1))
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}.*{told}") as found:
        ApiTokens.read(file)
    assert digest_of("the first token") not in str(found.value)


def test_two_tokens_of_one_name_or_digest_are_refused(tmp_path: Path) -> None:
    for second in (ONE, ONE.replace('"one"', '"two"')):
        with pytest.raises(ConfigError, match="two tokens have the"):
            ApiTokens.read(written(tmp_path, ONE + second))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        ApiTokens.read(tmp_path / "absent")


def test_a_certificate_stands_for_the_first_entry_that_has_one_of_its_names(
    tmp_path: Path,
) -> None:
    entry = '[[token]]\nname = "{0}"\ncertificate = "{0}.example"\nscopes = ["read"]\n'
    tokens = ApiTokens.read(written(tmp_path, ONE + entry.format("a") + entry.format("b")))
    found = tokens.of_certificate({"b.example", "a.example"})
    assert found is not None and found.name == "a" and not found.is_limited
    assert tokens.of_certificate({"c.example", "one"}) is None and not tokens.of_certificate(())
    twice = ONE + entry.format("a") + entry.format("a").replace('name = "a"', 'name = "b"')
    with pytest.raises(ConfigError, match=r"two tokens have the certificate a\.example"):
        ApiTokens.read(written(tmp_path, twice))
