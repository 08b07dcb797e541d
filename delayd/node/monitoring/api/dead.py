"""Dead letters: the newest ones, one with its record, and redrives."""

from collections.abc import Iterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query

from delayd.client.redrive_outcomes import Outcome, Word, redrive, try_out
from delayd.cluster.dead_letters import Wanted, letters, newest, summary, wanted, whole
from delayd.config.api_tokens import ApiToken, Scope
from delayd.errors import ConfigError
from delayd.node.monitoring.api.access import refuse_target
from delayd.node.monitoring.api.models import (
    LetterOut,
    Letters,
    LetterSummary,
    RedriveIn,
    Redriven,
    RedriveOutcome,
)
from delayd.node.monitoring.api.problems import NotKnownError
from delayd.node.monitoring.api.services import TIMEOUT_MS, Services
from delayd.request.letters import Letter
from delayd.request.reasons import RefusedError
from delayd.request.redrives import Correction, NoRedrive, Redrive, redrive_of_letter
from delayd.request.times import delay_ms_of, due_ms_of

LIMIT_MAX: Final = 1_000
REDRIVE_TIMEOUT_MS: Final = 30_000

Reasons = Annotated[list[str], Query(description="Only with one of these reasons.", max_length=20)]
Topics = Annotated[list[str], Query(description="Only for one of these targets.", max_length=100)]
Ids = Annotated[list[str], Query(description="Only with one of these ids.", max_length=100)]
Since = Annotated[
    str | None, Query(description="Dead since: Unix ms, RFC 3339, or how long ago (2h).")
]
Until = Annotated[str | None, Query(description="Dead before: as since.")]
Limit = Annotated[int, Query(description="The newest so many.", ge=1, le=LIMIT_MAX)]
Partition = Annotated[int, Path(ge=0, le=65_535)]
Offset = Annotated[int, Path(ge=0, le=2**53 - 1)]


def add_dead(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    needs = services.access.needs
    Reader = Annotated[ApiToken, Depends(needs(Scope.READ))]  # noqa: N806
    Operator = Annotated[ApiToken, Depends(needs(Scope.OPERATE))]  # noqa: N806

    @api.get("/dead", operation_id="list_dead")
    async def list_dead(
        reader: Reader,
        reason: Reasons = [],  # noqa: B006  # FastAPI copies it
        topic: Topics = [],  # noqa: B006
        id: Ids = [],  # noqa: B006
        since: Since = None,
        until: Until = None,
        limit: Limit = 50,
    ) -> Letters:
        """The newest dead letters that match, oldest first, and how many match by reason."""
        now_ms = services.node.clock.wall_ms()
        which = wanted(now_ms, None, reason, topic, id, since, until)

        def work() -> Letters:
            found, reasons = newest(_seen(services, reader, which), limit)
            return Letters(
                letters=[LetterSummary(**summary(each)) for each in found],
                matching=reasons.total(),
                reasons=reasons,
            )

        return await services.reads.do(work)

    @api.get("/dead/{partition}/{offset}", operation_id="show_dead")
    async def show_dead(reader: Reader, partition: Partition, offset: Offset) -> LetterOut:
        """One dead letter with its record: whatever is not UTF-8 as `{"base64": ...}`."""
        which = Wanted(sources=frozenset((f"{partition}/{offset}",)))

        def work() -> LetterOut:
            found = next(_seen(services, reader, which), None)
            if found is None:
                raise NotKnownError("there is no such dead letter", remedy="list them")
            return LetterOut(**whole(found))

        return await services.reads.do(work)

    @api.post("/dead/redrive", operation_id="redrive")
    async def redrive_letters(operator: Operator, asked: RedriveIn) -> Redriven:
        """Send dead letters again, each at most once, whoever asks how often."""
        if asked.topic is not None:
            refuse_target(operator, asked.topic)
        correction = _correction(asked)
        return await services.writes.do(lambda: _redriven(services, operator, asked, correction))


def _redriven(
    services: Services, operator: ApiToken, asked: RedriveIn, correction: Correction
) -> Redriven:
    limits, clock = services.node.replica.limits, services.node.clock
    outcomes: list[Outcome] = []
    found = _seen(services, operator, Wanted(sources=frozenset(asked.sources)))

    def plan(letter: Letter) -> Redrive | NoRedrive:
        return redrive_of_letter(letter, limits, clock.wall_ms(), correction)

    complete = True
    if asked.dry_run:
        outcomes += try_out(found, plan)
    else:
        redriver = services.requests.redriver
        complete = redrive(
            found, plan, lambda some: redriver.redrive(some, REDRIVE_TIMEOUT_MS), outcomes.append
        )
    if complete:
        missing = set(asked.sources) - {outcome.source for outcome in outcomes}
        outcomes += [
            Outcome(source, Word.MISSING, "there is no such dead letter")
            for source in sorted(missing)
        ]
    return Redriven(
        letters=[RedriveOutcome.model_validate(outcome.to_json()) for outcome in outcomes],
        complete=complete,
    )


def _seen(services: Services, reader: ApiToken, which: Wanted) -> Iterator[Letter]:
    """Yield the letters that are wanted and that the reader may see."""
    topic = services.node.replica.settings.dead.name
    found = letters(services.bus, topic, which, services.node.clock, TIMEOUT_MS)
    return (letter for letter in found if reader.covers(letter.topic))


def _correction(asked: RedriveIn) -> Correction:
    """Return what a redrive changes. ConfigError if a time makes no sense."""
    if asked.delay is not None and asked.at is not None:
        raise ConfigError("delay and at contradict each other", remedy="give one, or none")
    try:
        if asked.delay is not None:
            delay_ms_of(asked.delay)
            return Correction(asked.topic, ("delayd-delay", asked.delay), asked.without_id)
        if asked.at is not None:
            due_ms_of(asked.at)
            return Correction(asked.topic, ("delayd-due", asked.at), asked.without_id)
    except RefusedError as error:
        raise ConfigError(error.detail) from error
    return Correction(asked.topic, None, asked.without_id)
