"""The bearer tokens of the HTTP API: a TOML file, the same on every node.

    [[token]]
    name = "orders-team"            # in logs and errors
    sha256 = "9f86d081884c7d65..."  # of the token: whoever reads the file has none
    scopes = ["read", "schedule"]
    targets = ["orders-*"]          # shell patterns; without it: all targets

    [[token]]
    name = "operators"
    certificate = "ops.example.com" # a name of the certificate that a client shows in its place
    scopes = ["read", "operate"]

Not here: which route needs which scope.
"""

import hashlib
import hmac
from collections.abc import Collection
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from delayd.config.security import problems_of, read_toml
from delayd.errors import ConfigError

TOKENS_MAX: Final = 1_000


class Scope(Enum):
    """What a token lets its bearer do."""

    READ = "read"
    """Look up, list and count."""
    SCHEDULE = "schedule"
    """Schedule, cancel, replace, reschedule, fire and debounce."""
    OPERATE = "operate"
    """Redrive dead letters, pause targets and resume them, limit what is pending for them."""


class ApiToken(BaseModel):
    """One token, or a certificate in its place. The token itself is nowhere: only its digest."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    certificate: Annotated[str, StringConstraints(min_length=1)] | None = None
    """The common name of a client's certificate, or one of its alternative names (DNS or URI)."""
    scopes: frozenset[Scope] = Field(min_length=1)
    targets: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ("*",)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "ApiToken":
        if (self.sha256 is None) is (self.certificate is None):
            raise ValueError("give either sha256 or certificate")
        return self

    @property
    def is_limited(self) -> bool:
        """Return whether there are targets that are not its own."""
        return "*" not in self.targets

    def covers(self, topic: str | None) -> bool:
        """Return whether a target is one of its own; one that is not known is only if all are."""
        if topic is None:
            return not self.is_limited
        return any(fnmatchcase(topic, pattern) for pattern in self.targets)


ANONYMOUS: Final = ApiToken(name="anonymous", sha256="0" * 64, scopes=frozenset({Scope.READ}))
"""Whoever shows no token, where the operator lets everybody read."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token: tuple[ApiToken, ...] = Field(max_length=TOKENS_MAX)


class ApiTokens:
    """All tokens."""

    def __init__(self, tokens: tuple[ApiToken, ...] = ()) -> None:
        self._tokens = tokens

    @classmethod
    def read(cls, file: Path) -> "ApiTokens":
        """Read the file. ConfigError names what is wrong in it."""
        try:
            tokens = _File(**read_toml(file)).token
        except ValidationError as error:
            raise ConfigError(
                f"{file}: {'; '.join(problems_of(error))}",
                remedy="docs/operations.md, 'Tokens', shows such a file",
            ) from error
        for field in ("name", "sha256", "certificate"):
            values = [found for each in tokens if (found := getattr(each, field)) is not None]
            twice = next((each for each in values if values.count(each) > 1), None)
            if twice is not None:
                raise ConfigError(
                    f"{file}: two tokens have the {field} {twice}", remedy="remove one of them"
                )
        return cls(tokens)

    def of(self, shown: str) -> ApiToken | None:
        """Return the token that somebody shows; None if it is none. Takes as long whatever is
        shown."""
        digest = digest_of(shown)
        found = None
        for token in self._tokens:
            if token.sha256 is not None and hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def of_certificate(self, names: Collection[str]) -> ApiToken | None:
        """Return what stands for a certificate with these names, the first in the file; None if
        nothing does."""
        return next((each for each in self._tokens if each.certificate in names), None)


def digest_of(token: str) -> str:
    """Return the digest of a token, as the file has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
