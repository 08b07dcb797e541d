"""Reference model of the rules about ids: what the buffer's log alone makes of each request. Pure.

It is independent of the product: it imports neither `delayd` nor `replication`. It parses nothing
either: each reader of a log says what a record asks for (`asked.py`). All judges beside the audit
use it: judge.py, cross_check.py and the random requests of tests/integration.

    schedule   is stored; while a message under its id is pending it is refused: as a `duplicate`
               if both ask for the same, else as a `conflict`
    redrive    is stored once for each dead letter; the next one is a `duplicate`
    cancel     kills the live messages under its id
    replace    kills them too, and is stored; unless it is the last one again, word for word and
               with a due time, and what that stored is live: then it changes nothing (`repeated`)
    debounce   kills those of them that are pending, and is stored (debouncing.py)
    continue   takes the place of the record that it continues, unless its message is killed; of a
               series it may be the next occurrence, which is a message of its own
    rejected   is refused, and changes nothing
    settle     is the master's note of what cancels came to, and changes nothing
    switch     is a barrier: behind it in its partition the rules of version 4 hold

A message is *live* from its record until a cancel or replace under its id; the log alone does not
say when it is delivered. It is *pending* while, besides, the time as of which a record is judged
has not reached its rank, or while its series goes on. The rules are those of version 4 and later,
with which chaos makes its clusters, or those of version 3 up to a barrier. For the log of a cluster
whose clocks are right these two differ in what a repeated cancel or replace comes to
(`Marker.settles`).

Invariant: every request of a user is in `messages`, or is a cancel and is in `markers`; a replace
is in both.
Source: docs/reference/requests.md; docs/design/frontier.md, "Ids" and "Verdicts".
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from chaos.asked import Asked, Content, Op
from chaos.clocks import moment_ms
from chaos.debouncing import debounced
from chaos.log_floor import LogFloor
from chaos.records import Logged


@dataclass(eq=False, slots=True)
class Marker:
    """A cancel or replace, and the messages that were live under its id."""

    asked: Asked
    live: list["Message"]
    earlier: "Marker | None" = None
    """The last marker under the id before it that found messages live and settles: if it finds
    none itself, it is told again what that one came to."""

    repeats: "Marker | None" = None
    """The same replace, sent before: it is told the same."""
    settles: bool = True
    """Is it ruled by version 4? Then the master writes down what it came to."""

    @property
    def word(self) -> str:
        """`cancelled` or `replaced`."""
        return "replaced" if self.asked.op in (Op.REPLACE, Op.DEBOUNCE) else "cancelled"


@dataclass(eq=False, slots=True)
class Message:
    """A user's request for a delivery, with the records that continue it."""

    asked: Asked
    refused: str | None = None
    """`duplicate` or `conflict`, if its id was taken; or `repeated`, or `rejected`."""
    killed_by: Marker | None = None
    """Its log's verdict; it may have been delivered by then."""
    newest: Asked = field(init=False)
    """The record that stands for it: its own, or the last that continues it."""
    attempts: dict[str, str | None] = field(default_factory=dict)
    """By source, of its records: how often it was tried in vain; None of its own request."""
    deliveries: list[Logged] = field(default_factory=list)
    """What a judge found in the targets."""
    letters: list[Logged] = field(default_factory=list)
    """What a judge found of it in the dead letters."""
    root: "Message | None" = None
    """Of an occurrence: the request for its series."""
    is_resolved: bool = False
    """Of a request for a series: its first occurrence was found."""
    is_cut: bool = False
    """Of an occurrence: the next one came behind a cancel or replace."""
    moving: Marker | None = None
    """The reschedule of which it is not known yet what it came to."""
    moved_to: dict[str, int] = field(default_factory=dict)
    """By source of a reschedule: when it is to be due by that."""
    is_moved: bool = False
    """Its newest record has a time that a reschedule gave it."""
    since_ms: int = 0
    """Of a debounce: when the first one of its run was appended."""

    def __post_init__(self) -> None:
        self.newest = self.asked
        self.attempts[self.source] = None

    @property
    def source(self) -> str:
        """Of the user's own record."""
        return self.asked.source

    @property
    def origin(self) -> str:
        """Of the user's own request."""
        return self.source if self.root is None else self.root.source

    @property
    def group(self) -> str:
        """Of the user's own request."""
        return (self.root or self).asked.group

    @property
    def record(self) -> Logged:
        """The user's own."""
        return self.asked.record

    @property
    def planned_ms(self) -> int:
        """When it is to go out by all requests before, Unix ms."""
        if self.moving is not None:
            return self.moved_to[self.moving.asked.source]
        return self.newest.rank[0]

    @property
    def content(self) -> Content:
        """What is to be delivered; of an occurrence and of a local time as it was found last."""
        is_as_asked = self.root is None and not self.is_moved and not self.asked.local
        asked = self.asked if is_as_asked else self.newest
        assert asked.content is not None, "the model stores only what can be delivered"
        return asked.content

    @property
    def run_ms(self) -> int:
        """Of a debounce that is as it was stored: when the first one of its run came; else 0."""
        is_as_stored = self.newest is self.asked and self.moving is None
        return self.since_ms if is_as_stored else 0

    @property
    def due_ms(self) -> int:
        """As asked, Unix ms."""
        return self.content.due_ms

    @property
    def earliest_ms(self) -> int:
        """When it may be delivered: with a window, as planned."""
        asked = self.newest if self.asked.local else self.asked
        planned_ms = None if self.is_moved else asked.planned_ms
        return self.due_ms if planned_ms is None else planned_ms

    @property
    def worth_until_ms(self) -> float:
        """Until when it is worth delivering, Unix ms."""
        late_ms = self.asked.late_ms
        return float("inf") if late_ms is None else self.earliest_ms + late_ms

    def differences(self, found: Logged) -> list[str]:
        """Return what a delivered record has otherwise than was asked for."""
        content, fields = self.content, found.fields
        source = fields.get("source", "")
        wanted = {
            "id": self.asked.id,
            "group": self.group or None,
            "due": str(content.due_ms),
            "planned": str(self.earliest_ms) if self.asked.window and not self.is_moved else None,
            "source": source,
            "origin": self.origin if source != self.origin else None,
            "attempt": self.attempts.get(source),
            "occurrence": None if self.root is None else str(self.newest.occurrence),
            "local": self.newest.local or None,
        }
        others = fields.keys() - {*wanted, "fired"}
        is_right = {
            "topic": found.topic == content.topic,
            "partition": content.partition in (None, found.partition),
            "key": found.key == content.key,
            "value": found.value == content.value,
            "headers": found.own == content.headers and not others,
            "fired": fields.get("fired", "").isdigit(),
            **{name: fields.get(name) == value for name, value in wanted.items()},
            "number of headers": len(found.headers) == len(found.own) + len(fields),
        }
        return [what for what, right in is_right.items() if not right]

    def is_early(self, found: Logged) -> bool:
        """Return whether it was fired, or was in its target, before it was due."""
        fired = found.fields.get("fired", "")
        out_ms = min(found.append_ms, int(fired) if fired.isdigit() else found.append_ms)
        return out_ms < self.earliest_ms


@dataclass(slots=True)
class Model:
    """What a log comes to. Feed `take` with committed records, in order in each partition."""

    messages: dict[str, Message] = field(default_factory=dict)
    """By source."""
    markers: dict[str, Marker] = field(default_factory=dict)
    family_of: dict[str, Message] = field(default_factory=dict)
    """Messages by the sources of all their records."""
    faults: list[str] = field(default_factory=list)
    """What no master may write into a buffer."""
    _floor: LogFloor = field(default_factory=LogFloor)
    _live: dict[tuple[int, str], list[Message]] = field(default_factory=lambda: defaultdict(list))
    _last_marker: dict[tuple[int, str | None], Marker] = field(default_factory=dict)
    """Of those that found anything live and settle."""
    _redriven: set[str] = field(default_factory=set)
    settles: bool = True
    """Do masters write down what cancels came to, as by rules version 4? Then a cancel or replace
    that is repeated is told the same. If not, they do behind a barrier."""
    _switched: set[int] = field(default_factory=set)
    """The partitions with a barrier."""
    max_delay_ms: float = float("inf")
    """The cluster's; where it is not known, no reschedule is too far."""

    def take(self, asked: Asked) -> None:
        """Apply the next record of its partition."""
        self._floor.take(asked.record)
        match asked.op:
            case Op.SETTLE:
                assert self._settles(asked), "masters do"
                self._free(asked)
            case Op.SWITCH:
                self._switched.add(asked.record.partition)
            case Op.REJECTED:
                self._store(asked, "rejected")
            case Op.CONTINUE:
                self._continue(asked)
            case Op.CANCEL:
                self._kill(asked)
            case Op.RESCHEDULE | Op.FIRE:
                self._move(asked)
            case Op.REPLACE if first := self._repeated(asked):
                self.markers[asked.source] = Marker(asked, [], repeats=first)  # by version 4
                self._store(asked, "repeated")
            case Op.REPLACE:
                self._kill(asked)
                self._store(asked)
            case Op.DEBOUNCE:
                self._debounce(asked)
            case Op.SCHEDULE:
                self._store(asked, self._refusal(asked))
            case Op.REDRIVE:
                is_again = asked.refers_to in self._redriven
                self._redriven.add(asked.refers_to)
                self._store(asked, "duplicate" if is_again else None)

    def _refusal(self, asked: Asked) -> str | None:
        as_of_ms = self._floor.as_of_ms(asked.record)
        pending = [
            each
            for each in self._under(asked)
            if each.newest.rank[0] > as_of_ms or each.newest.goes_on or each.moving is not None
        ]
        if not pending:
            return None
        asked_for = [(each.root or each).asked for each in pending]
        return "duplicate" if any(asked.is_as(each) for each in asked_for) else "conflict"

    def _repeated(self, asked: Asked) -> Marker | None:
        """Return the replace that this one repeats. What one with a delay asks for is new."""
        has_due = [name for name, _ in asked.times] == ["due"] and not asked.local
        may_repeat = self._settles(asked) and has_due
        for message in self._under(asked) if may_repeat else ():
            first = self.markers.get(message.source)
            if first is not None and first.settles and asked.is_as(message.asked):
                return first
        return None

    def _store(self, asked: Asked, refused: str | None = None) -> None:
        message = self.messages[asked.source] = Message(asked, refused)
        self.family_of[asked.source] = message
        if refused is None and asked.id is not None:
            self._under(asked).append(message)

    def _kill(self, asked: Asked) -> None:
        live, settles = self._under(asked), self._settles(asked)
        place = (asked.record.partition, asked.id)
        marker = Marker(asked, list(live), self._last_marker.get(place), settles=settles)
        self.markers[asked.source] = marker
        if live and settles:
            self._last_marker[place] = marker
        for message in live:
            message.killed_by = marker
            message.moving = None
        live.clear()

    def _debounce(self, asked: Asked) -> None:
        """Store the last of several in place of what is pending. What is due goes out."""
        live = self._under(asked)
        found = debounced(asked, live, self._floor.as_of_ms(asked.record))
        marker = Marker(found.asked, found.gone, settles=False)
        if found.is_answered:
            self.markers[asked.source] = marker
        live[:] = [each for each in live if each not in found.gone]
        for message in found.gone:
            message.killed_by, message.moving = marker, None
        self._store(found.asked)
        self.messages[asked.source].since_ms = found.since_ms

    def _move(self, asked: Asked) -> None:
        """Give what is live another due time, once its master says so."""
        live = self._under(asked)
        going = [each for each in live if each.newest.goes_on]
        is_open = asked.by_ms is not None and any(each.moving is None for each in going)
        if asked.op is Op.RESCHEDULE and (is_open or any(each.newest.series for each in going)):
            self._store(replace(asked, reason="unmovable"), "rejected")
            return
        if self._is_too_far(asked, live):
            self._store(replace(asked, reason="too-far"), "rejected")
            return
        earlier = self._last_marker.get((asked.record.partition, asked.id))
        marker = Marker(asked, list(live), earlier)
        self.markers[asked.source] = marker
        for message in live:
            new_ms = asked.new_due_ms
            if asked.by_ms is not None:
                new_ms = max(asked.record.append_ms, message.planned_ms + asked.by_ms)
            message.moved_to[asked.source] = new_ms
            message.moving = marker

    def _is_too_far(self, asked: Asked, live: list["Message"]) -> bool:
        as_of_ms = self._floor.as_of_ms(asked.record)
        return asked.by_ms is not None and any(
            each.planned_ms + asked.by_ms > asked.record.append_ms + self.max_delay_ms
            for each in live
            if each.moving is not None or each.newest.rank[0] > as_of_ms
        )

    def _free(self, asked: Asked) -> None:
        """Take in what masters say of markers: what one has not moved is done, not live."""
        value = asked.record.value or b""
        for id, offset, *found in json.loads(value) if value.startswith(b"[") else ():
            live = self._live[place := (asked.record.partition, id)]
            for message in list(live):
                if (marker := message.moving) and marker.asked.record.offset == offset:
                    live.remove(message)
                    message.moving = None
                    if any(found[:2]):
                        self._last_marker[place] = marker

    def _carry_out(self, message: Message, asked: Asked) -> None:
        """Take what a reschedule has written of a message."""
        assert asked.content is not None
        due_ms = message.moved_to.get(asked.moved_by)
        at_ms = asked.next_due_ms if asked.series else asked.content.due_ms
        before = message.content._replace(due_ms=0)
        is_same = asked.content._replace(due_ms=0) == before and asked.group == message.group
        if due_ms != at_ms or not is_same:
            what = f"due at {at_ms}, not {due_ms}; {asked.content}, and was {message.content}"
            self.faults.append(f"{asked.source}: is not what {asked.moved_by} asked for: {what}")
        self.family_of[asked.source] = message
        attempt = asked.record.fields.get("attempt", "0")
        message.attempts[asked.source] = None if attempt == "0" else attempt
        if message.killed_by is not None:
            return  # the cancel came first: the continuation is refused
        if message.newest.source != asked.refers_to:
            self.faults.append(f"{asked.source}: continues {asked.refers_to} once more")
        message.newest, message.is_moved = asked, True
        if message.moving is not None and message.moving.asked.source == asked.moved_by:
            message.moving = None

    def _continue(self, asked: Asked) -> None:
        message = self.family_of.get(asked.refers_to)
        fields = asked.record.fields
        if message is None:
            self.faults.append(f"{asked.source}: continues {asked.refers_to}, which is unknown")
            return
        if asked.moved_by:
            self._carry_out(message, asked)
            return
        is_same = self._is_same(message, asked)
        if fields.get("origin") != message.origin or not is_same:
            self.faults.append(f"{asked.source}: is not what {message.source} asked for")
        is_deferred = asked.occurrence == message.newest.occurrence and asked.state == "on"
        if asked.series and (asked.follows or (message.root is None and not is_deferred)):
            self._follow(message, asked)
            return
        self.family_of[asked.source] = message
        attempt = fields.get("attempt", "0")
        message.attempts[asked.source] = None if attempt == "0" else attempt
        if message.killed_by is not None:
            return  # the cancel came first: the continuation is refused
        if message.newest.source != asked.refers_to:
            self.faults.append(f"{asked.source}: continues {asked.refers_to} once more")
        message.newest = asked

    def _is_same(self, message: Message, asked: Asked) -> bool:
        """Return whether a continuation carries its message; of a series but for the time."""
        assert asked.content is not None
        before = message.content
        if asked.group != message.group:
            return False
        if asked.local:
            is_same = asked.content._replace(due_ms=0) == before._replace(due_ms=0)
            return is_same and self._is_resolved(message.newest, asked)
        if not asked.series:
            return asked.content == before
        is_next = asked.content.due_ms >= before.due_ms
        return is_next and asked.content._replace(due_ms=0) == before._replace(due_ms=0)

    def _is_resolved(self, before: Asked, asked: Asked) -> bool:
        """Return whether a record has the due time of its local time."""
        assert asked.content is not None and before.content is not None
        is_same = asked.content.due_ms == before.content.due_ms
        if not before.goes_on or asked.state == "no":
            return is_same and asked.state == before.state and asked.local == before.local
        text, _, zone = asked.local.removesuffix("]").partition("[")
        due_ms = moment_ms(text, zone)
        is_right = due_ms is None if asked.state == "over" else asked.content.due_ms == due_ms
        return is_right and asked.local == before.local

    def _follow(self, message: Message, asked: Asked) -> None:
        """Take the next occurrence of a series, or its first one."""
        if message.newest.source != asked.refers_to:
            self.faults.append(f"{asked.source}: follows {asked.refers_to} once more")
        number = message.newest.occurrence + (asked.state != "over" or asked.follows)
        if asked.occurrence != number:
            self.faults.append(f"{asked.source}: is occurrence {asked.occurrence}, not {number}")
        if message.root is None:
            message.is_resolved = True
        if message.killed_by is not None:
            message.is_cut = asked.follows
            message.is_resolved = False
            return  # the cancel came first: the series ends
        following = Message(asked, root=message.root or message)
        if not asked.follows:
            following.moving, following.moved_to = message.moving, message.moved_to
        following.attempts[asked.source] = None
        self.messages[asked.source] = self.family_of[asked.source] = following
        live = self._under(asked)
        live[:] = [following if each is message else each for each in live]

    def _settles(self, asked: Asked) -> bool:
        return self.settles or asked.record.partition in self._switched

    def _under(self, asked: Asked) -> list[Message]:
        """The live messages under its id; of what has none, nothing that would be kept."""
        return self._live[asked.record.partition, asked.id] if asked.id is not None else []


def model_of(records: Iterable[Logged]) -> Model:
    """Return the model of a cluster, which is yet to take these records of its buffer. One that was
    made with older rules has barriers, or no settlements."""
    records = list(records)
    is_switched = any(record.is_barrier for record in records)
    return Model(settles=not is_switched and any(record.is_settlement for record in records))
