"""Pending messages: counted, and listed page by page from the node's last checkpoint."""

import re
from collections.abc import Generator
from contextlib import closing
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Depends, Query

from delayd.config.api_tokens import ApiToken, Scope
from delayd.node.monitoring.api.models import (
    MS_MAX,
    PendingCount,
    PendingCounts,
    PendingItem,
    PendingPage,
)
from delayd.node.monitoring.api.problems import BusyError, MalformedError
from delayd.node.monitoring.api.services import Services
from delayd.node.replica.held import peeked
from delayd.request import (
    LocalState,
    asked_due_of,
    attempt_of,
    group_of,
    id_of,
    local_of,
    origin_of,
    series_of,
    source_of,
)
from delayd.wheel.frame import HEADER_BYTES, topic_of
from delayd.wheel.listing import Cursor, Listing
from replication.rank import Rank

PAGE_BYTES: Final = 1024 * 1024
"""Read for one page: some 4,000 messages, 25 ms of processor."""
LIMIT_MAX: Final = 1_000
CURSOR: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,15}){3}")


class Filter(NamedTuple):
    """What a page may show."""

    reader: ApiToken
    topic: str | None
    id_prefix: str | None
    group: str | None
    from_ms: int
    until_ms: int


Topic = Annotated[str | None, Query(description="Only for this target.", max_length=249)]
IdPrefix = Annotated[
    str | None, Query(description="Only with an id that begins so.", min_length=1, max_length=256)
]
Group = Annotated[
    str | None, Query(description="Only of this group.", min_length=1, max_length=256)
]
FromMs = Annotated[int, Query(description="Only due from then on, Unix ms.", ge=0, le=MS_MAX)]
UntilMs = Annotated[int, Query(description="Only due before then, Unix ms.", ge=0, le=MS_MAX)]
CursorIn = Annotated[
    str | None,
    Query(description="`next` of the page before.", pattern=f"^{CURSOR.pattern}$"),
]
Limit = Annotated[int, Query(description="Messages of a page at most.", ge=1, le=LIMIT_MAX)]


def add_pending(api: APIRouter, services: Services) -> None:
    """Add the routes."""
    Reader = Annotated[ApiToken, Depends(services.access.needs(Scope.READ))]  # noqa: N806

    @api.get("/pending/counts", operation_id="count_pending")
    async def counts(reader: Reader) -> PendingCounts:
        """How many messages are pending, by hour and by target. Costs nothing. A token for some
        targets sees those, and no hours."""
        found = services.node.pending()
        if reader.is_limited:
            mine = {name: n for name, n in found["topics"].items() if reader.covers(name)}
            return PendingCounts(total=sum(mine.values()), hours=[], topics=mine)
        return PendingCounts(**{name: found[name] for name in ("total", "hours", "topics")})

    async def matching(
        reader: Reader,
        topic: Topic = None,
        id_prefix: IdPrefix = None,
        group: Group = None,
        from_ms: FromMs = 0,
        until_ms: UntilMs = MS_MAX,
        cursor: CursorIn = None,
    ) -> tuple[Filter, Cursor]:
        return Filter(reader, topic, id_prefix, group, from_ms, until_ms), _cursor(cursor)

    Matching = Annotated[tuple[Filter, Cursor], Depends(matching)]  # noqa: N806

    @api.get("/pending/count", operation_id="count_matching")
    async def count(asked: Matching) -> PendingCount:
        """How many pending messages match, in what one page looks at: go on until `next` is
        null."""
        items, after = await services.reads.do(lambda: _page(services, *asked, None))
        return PendingCount(messages=len(items), next=after)

    @api.get("/pending", operation_id="list_pending")
    async def pending(asked: Matching, limit: Limit = 100) -> PendingPage:
        """Pending messages by the hour in which they are due; within an hour in no order. Go on
        until `next` is null."""
        items, after = await services.reads.do(lambda: _page(services, *asked, limit))
        return PendingPage(messages=items, next=after)


def _page(
    services: Services, asked: Filter, begin: Cursor, limit: int | None
) -> tuple[list[PendingItem], str | None]:
    """Return the messages of one page, and the cursor of the next one."""
    newest = services.node.replica.newest
    if newest is None:
        raise BusyError("this node has read no frontier yet", remedy="ask another node")
    reached_ms = newest.record.frontier.lowest_cursor.due_ms
    with peeked(services.node.replica) as wheel:
        listing = Listing(
            wheel,
            begin,
            from_ms=max(asked.from_ms, reached_ms),
            until_ms=asked.until_ms,
            topic=asked.topic,
            bytes_max=PAGE_BYTES,
            text=asked.group,
        )
        items: list[PendingItem] = []
        with closing(_items(listing, asked, services)) as found:
            for item in found:
                items.append(item)
                if len(items) == limit:
                    break
    after = listing.next
    return items, None if after is None else ".".join(map(str, after))


def _items(
    listing: Listing, asked: Filter, services: Services
) -> Generator[PendingItem, None, None]:
    newest = services.node.replica.newest
    assert newest is not None, "it was there"
    frontier = newest.record.frontier
    for frame, body in listing.messages():
        topic, id = topic_of(body), id_of(body)
        if asked.topic not in (None, topic) or not asked.reader.covers(topic):
            continue
        group = group_of(body)
        if asked.group not in (None, group):
            continue
        if asked.id_prefix is not None and not (id or "").startswith(asked.id_prefix):
            continue
        if frontier.covers(frame.lane, Rank(frame.due_ms, frame.partition, frame.offset)):
            continue
        series, local = series_of(body), local_of(body)
        is_resolved = local is not None and local.state in (LocalState.EXPECTED, LocalState.FINAL)
        yield PendingItem(
            source=source_of(frame.partition, frame.offset),
            origin=origin_of(body, frame.partition, frame.offset),
            id=id,
            topic=topic,
            group=group,
            due_ms=frame.due_ms,
            attempts=attempt_of(body),
            bytes=HEADER_BYTES + len(frame.body),
            cron=None if series is None else series.cron,
            zone=series.zone if series is not None else None if local is None else local.zone,
            local=None if local is None else local.text,
            resolved_ms=asked_due_of(body) if is_resolved else None,
            occurrence=None if series is None else series.occurrence,
        )


def _cursor(text: str | None) -> Cursor:
    if text is None:
        return Cursor(0)
    if not CURSOR.fullmatch(text):
        raise MalformedError("the cursor is none that a page gave")
    return Cursor(*map(int, text.split(".")))
