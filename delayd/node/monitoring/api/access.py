"""Who may do what through the API, and how often.

Invariants: a change needs a token, always; what a token may not see is as if it were not there;
nothing of a token is in an answer or a log line.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from delayd.config.api_tokens import ANONYMOUS, ApiToken, ApiTokens, Scope
from delayd.node.monitoring.api.problems import RateError, ScopeError, TokenError
from delayd.node.monitoring.connections import PEER_NAMES
from delayd.runtime.bounded_dict import BoundedDict
from delayd.runtime.clock import Clock

BEARERS_MAX: Final = 10_000
"""Tokens and addresses whose rate is remembered: those that asked last."""

BURST_S: Final = 2
"""A bearer that was quiet may ask for so many seconds' worth at once."""

_BEARER: Final = HTTPBearer(
    auto_error=False, description="One of the tokens in the node's `api_tokens_file`."
)

Shown = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


class Rates:
    """How many requests each bearer has left: a bucket that fills with time. On the event loop."""

    def __init__(self, clock: Clock, requests_per_s: int) -> None:
        self._clock = clock
        self._per_s = requests_per_s
        self._buckets: BoundedDict[str, tuple[float, int]] = BoundedDict(BEARERS_MAX)
        """By bearer: what was left, and when."""

    def take(self, bearer: str) -> None:
        """Count one request. RateError if there is none left."""
        now_ms, most = self._clock.monotonic_ms(), float(BURST_S * self._per_s)
        left, at_ms = self._buckets.get(bearer, (most, now_ms))
        left = min(most, left + (now_ms - at_ms) * self._per_s / 1000)
        self._buckets[bearer] = max(0.0, left - 1), now_ms
        if left < 1:
            raise RateError(
                f"more than {self._per_s} requests a second",
                remedy="ask less often; a list of messages counts as one request",
            )


class Access:
    """Decides about each request. Lives on the event loop."""

    def __init__(self, tokens: ApiTokens, rates: Rates, *, anonymous_reads: bool) -> None:
        self._tokens = tokens
        self._rates = rates
        self._anonymous_reads = anonymous_reads

    def needs(self, scope: Scope) -> Callable[..., Awaitable[ApiToken]]:
        """Return a dependency that gives the token of a request, if it has this scope.

        Raises TokenError, ScopeError, RateError.
        """

        async def check(request: Request, shown: Shown) -> ApiToken:
            return self._check(request, None if shown is None else shown.credentials, scope)

        return check

    def _check(self, request: Request, shown: str | None, scope: Scope) -> ApiToken:
        # Of both, the token counts: somebody chose to send it.
        if shown is None:
            token = self._tokens.of_certificate(getattr(request.state, PEER_NAMES, ()))
        else:
            token = self._tokens.of(shown)
        if token is not None:
            self._rates.take(f"token {token.name}")
        else:
            # Whoever guesses tokens is slowed down, too.
            self._rates.take(request.client.host if request.client else "")
        if token is None and shown is None and self._anonymous_reads and scope is Scope.READ:
            token = ANONYMOUS
        if token is None:
            raise TokenError(
                "this needs a token" if shown is None else "this node knows no such token",
                remedy="send `Authorization: Bearer TOKEN`, of a token in api_tokens_file, or show "
                "a certificate that it names",
            )
        if scope not in token.scopes:
            raise ScopeError(
                f"the token {token.name} has not the scope {scope.value}",
                remedy="ask whoever keeps api_tokens_file for it",
            )
        return token


def refuse_target(token: ApiToken, topic: str | None) -> None:
    """Raise ScopeError if a target is not one of the token's."""
    if not token.covers(topic):
        named = "a target that is not known" if topic is None else f"the target {topic[:249]!a}"
        raise ScopeError(
            f"the token {token.name} is not for {named}",
            remedy=f"its targets are {', '.join(token.targets)}",
        )
