"""What must hold of a run, judged from the committed records in Kafka alone.

It shares no code with what it judges: headers, frontier records, ranks and lanes are read anew,
here and in log_rules.py, from docs/design/frontier.md. Each check names the rule that the run must
obey.
"""

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeAlias
from zlib import crc32

from frontier_order import in_order
from local_checker import LocalChecker
from log_rules import (
    MOVES,
    Request,
    Rules,
    check_follows,
    check_resharded,
    check_stands_still,
    joint_steps,
    planned_of,
    step_of_fields,
)
from moves_checker import MovesChecker
from pauses_checker import PausesChecker, is_good
from quotas_checker import QuotasChecker, QuotasInLog
from series_checker import SERIES, SeriesChecker
from wishes_checker import LATER, WishesChecker

from delayd.bus import Record
from delayd.bus.memory import MemoryKafka
from delayd.bus.unreadable import UnreadableBatch
from replication.settings import RULES_VERSION

BUFFER, FRONTIER, DEAD, RECEIPTS = (
    "delayd-buffer",
    "delayd-frontier",
    "delayd-dead",
    "delayd-receipts",
)
BORROWED_MS = 1_250
"""What a topic may be ahead of its rate, and behind it: docs/design/frontier.md, Smoothing."""
CLOCKS_APART_MS = 4_000
"""Steps back of clocks that a successor makes nothing of."""

Gone: TypeAlias = Mapping[tuple[str, int], Sequence[Record]]
"""By topic and partition: committed records that the brokers have deleted."""
NOTHING_GONE: Gone = {}


def committed(kafka: MemoryKafka, topic: str, gone: Gone = NOTHING_GONE) -> list[Record]:
    """Return the committed records of a topic, partition by partition; of the frontier topic those
    that are frontiers by their key. `gone`: those that the brokers have deleted."""
    records = []
    for log in kafka.topics[topic].partitions:
        there = log.read(log.start_offset, 10**9)[0]
        deleted = gone.get((topic, log.number))
        records += sorted([*deleted, *there], key=lambda r: r.offset) if deleted else there
    if topic == FRONTIER:
        return [record for record in records if record.key == b"shard-%d" % record.partition]
    return records


class Checker:
    """One finished run."""

    def __init__(
        self,
        kafka: MemoryKafka,
        may_die: Container[str] = (),
        *,
        brokers_stepped_back_ms: int = 0,
        nodes_stepped_back_ms: int = 0,
        id_memory_ms: int = 3_600_000,
        due_by_ms: int = 10**15,
        rules_version: int = RULES_VERSION,
        ignores_repeats: bool = False,
        rates: Mapping[str, int] | None = None,
        gone: Gone = NOTHING_GONE,
        barriers: Mapping[tuple[int, int], bool] | None = None,
        orders: Mapping[tuple[int, int], bool] | None = None,
        quotas: Mapping[tuple[int, int], bool] | None = None,
    ) -> None:
        """`may_die`: targets that refused records for a while, perhaps for all retries. `rates`:
        records a second at most, by target.

        `..._stepped_back_ms`: by how much clocks were set back, all in all. A record may be stamped
        so much earlier than the master believed. `due_by_ms`: a message that was due by then and
        was not delivered is lost. `barriers`: by partition and offset, the records that switch the
        rules, and those that only look like it. `orders`: the same of pauses. `quotas`: and of
        quotas.
        """
        self._barriers = barriers or {}
        self._orders = orders or {}
        self.kafka = kafka
        self.may_die = may_die
        self._brokers_stepped_back_ms = brokers_stepped_back_ms
        self._nodes_stepped_back_ms = nodes_stepped_back_ms
        self._id_memory_ms = id_memory_ms
        self.rules_version = rules_version
        self.due_by_ms = due_by_ms
        self.rates = rates or {}
        self._gone = gone
        self.smoothed = 0
        """Messages that smoothing deferred, and whose order was judged."""
        self._quotas = QuotasInLog(quotas or {})
        requests = [self._request(record) for record in self.committed(BUFFER)]
        self.rules = Rules(
            requests, id_memory_ms, rules_version=rules_version, ignores_repeats=ignores_repeats
        )
        told = {r.source for r in requests if r.id is not None or r.redrive or r.is_told}
        self.rules.refusals |= dict.fromkeys(self._quotas.over & told, "over-quota")
        self.messages = self.rules.messages
        self.answers = self.rules.answers
        self.retries = {
            f"{request.partition}/{request.continues}": request
            for request in requests
            if request.op == "continue" and request.moved_by < 0
        }
        """By source: what continues it, refused or not."""
        frontiers = in_order(self.committed(FRONTIER))
        steps = [step_of_fields(json.loads(record.value or b"")) for record in frontiers]
        self.every_step = steps
        """Of all shards, in the order in which they were written."""
        self.shards = max(step.shards for step in steps)
        self.of_shards = [
            [step for step in steps if step.fields["shard"] == shard]
            for shard in range(self.shards)
        ]
        """The steps of each shard."""
        joint = joint_steps(steps)
        self.steps = [step for _, step in joint]
        self.step_times = [frontiers[index].append_ms for index, _ in joint]
        """By step: when it was written, by the broker's clock."""
        self.step_of: dict[str, int] = {}
        """By source: the index of the step that made a message Done."""
        self.late: set[str] = set()
        self.repeated: Counter[str] = Counter()
        """By verdict: cancels and replaces that were told what an earlier one had been told."""
        self.wishes = WishesChecker(self)
        self.series = SeriesChecker(self)
        self.local = LocalChecker(self)
        self.produced = self._produced()
        self.verdicts = self._verdicts()
        self.killed = {
            source
            for source in self.rules.killed_by
            if not self.produced[source] and source not in self.rules.continued_by
        }
        self.moves = MovesChecker(self)
        self.pauses = PausesChecker(self)
        self.quotas = QuotasChecker(self, self._quotas)

    def check(self) -> None:
        """Raise AssertionError, with the source or step that breaks a rule."""
        self.check_frontiers()
        self.check_barriers()
        self.check_now()
        self.check_steps()
        self.check_produced()
        self.check_verdicts()
        self.wishes.check()
        self.series.check()
        self.local.check()
        self.check_order()
        self.check_rates()
        self.check_smoothed_order()
        self.pauses.check()
        self.quotas.check()

    def check_frontiers(self) -> None:
        """Check steps: forward only. Check terms: never back, and a first step moves nothing
        else."""
        for steps in self.of_shards:
            for before, after in pairwise(steps):
                if before.shards == after.shards:
                    check_follows(before, after)
                else:
                    check_resharded(before, after)
        for before, after in pairwise(self.steps):
            if before.shards != after.shards:
                check_stands_still(before, after)

    def check_barriers(self) -> None:
        """Check that each frontier names the barriers below its O, and needs who knows them."""
        for step in chain.from_iterable(self.of_shards):
            named = sorted(
                [partition, offset, RULES_VERSION]
                for partition, offset in self.rules.barriers
                if offset < step.offsets[partition]
            )
            found = (step.fields["format"], step.fields.get("barriers", []))
            changes = step.fields.keys() & {"rest_ms", "resharding"}
            is_special = changes or step.fields.keys() & {"holds", "quotas"}
            format = 3 if named or is_special or step.shards > 1 else 2
            assert found == (format, named), f"step {step.fields['step']}: {found}"
            needs = step.fields.get("needs", {})
            if "holds" in step.fields:
                assert needs.pop("holds", None) == "0.2.0"
            if "quotas" in step.fields:
                assert needs.pop("quotas", None) == "0.2.0"
            if changes:
                assert needs.pop("resharding", None) == "0.2.0"
            if step.shards > 1:
                assert needs.pop("shards", None) == "0.2.0"
            assert sorted(needs) == (["barriers", f"rules-{RULES_VERSION}"] if named else []), needs

    def check_now(self) -> None:
        """Check now: the broker's clock had reached the time that a step assumed, to the ms."""
        for record in self.committed(FRONTIER):
            fields = json.loads(record.value or b"")
            now_ms, where = fields["now_ms"], f"step {fields['step']}"
            assert self._latest_ms(FRONTIER, record) >= now_ms, (
                f"{where} took it for {now_ms}, and it was {record.append_ms}"
            )

    def check_steps(self) -> None:
        """Check that each step delivers Done(K', O') - Done(K, O), answers [O, O'), and says so."""
        # By rank, so that what no lane has come to is not looked at.
        ahead = sorted(
            (m for m in self.messages if not self.steps[0].is_done(m)), key=lambda m: m.rank
        )
        for index, (before, after) in enumerate(zip(self.steps, self.steps[1:], strict=False), 1):
            counts, where = after.fields["counts"], f"step {after.fields['step']}"
            reached = bisect_left(ahead, max(after.cursors), key=lambda m: m.rank)
            done = [m for m in ahead[:reached] if after.is_done(m)]
            if done:
                ahead = [m for m in ahead[:reached] if not after.is_done(m)] + ahead[reached:]
            answered = [
                a
                for a in self.answers
                if before.offsets[a.partition] <= a.offset < after.offsets[a.partition]
            ]
            late = {m.source for m in done if m.rank < before.cursor_of(m.lane, m.partition)}
            # One whose continuation was refused later counts as retried here.
            retried = [m for m in done if m.source in self.retries and not self._is_followed(m)]
            gone = self.killed | self.moves.moved
            killed = [m for m in done if m.source in gone and m not in retried]
            delivered = [m for m in done if self._reached(m, m.topic)]
            dead = [m for m in done if self._reached(m, DEAD)]
            digest = sum(crc32(m.source.encode()) for m in delivered)
            for name, found in (
                ("delivered", delivered),
                ("killed", killed),
                ("retried", retried),
                ("dead", dead),
                ("answers", answered),
                ("late", late),
            ):
                assert counts[name] == len(found), f"{where}: {counts}, not {name} {found}"
            assert len(done) == sum(map(len, (delivered, killed, retried, dead))), where
            assert after.fields["digest"] == digest, f"{where}: digest of {delivered}"
            written = after.fields["own_writes"]
            continued = [m for m in done if m.source in self.retries]
            assert all(written[m.partition] >= self.retries[m.source].offset for m in continued), (
                f"{where}: R is {written}"
            )
            self.late |= late
            self.step_of |= {message.source: index for message in done}

    def check_produced(self) -> None:
        """Check that everything asked for came exactly once, in the step that made it Done,
        never early."""
        by_source = {request.source: request for request in self.messages + self.answers}
        for topic in self.targets():
            for record in self.committed(topic):
                headers = dict(record.headers)
                source = (headers["delayd-source"] or b"").decode()
                request = by_source[source]
                assert record.value == request.value, f"{source} was altered"
                if topic == DEAD:
                    continue
                fired_ms = self.check_not_early(topic, record, request)
                assert source in self.step_of, f"{source} was delivered, but is not Done"
                step = self.steps[self.step_of[source]].fields
                assert fired_ms == step["now_ms"], f"{source} belongs to step {step['step']}"
        for message in self.messages:
            times = sum(self.produced[message.source].values())
            is_continued = message.source in self.rules.continued_by
            if (is_continued and not self._is_followed(message)) or message.source in self.killed:
                expected: dict[str, int] = {}
            elif message.due_ms > self.due_by_ms and not self.steps[-1].is_done(message):
                expected = {}
            elif "dead" in (message.expects, self.wishes.outcome_of(message)):
                expected = {DEAD: 1}
            else:
                expected = {message.topic: 1}
            found = dict(self.produced[message.source])
            if found == {DEAD: 1} and message.topic in self.may_die and expected:
                continue
            assert found == expected, f"{message.source}: {found} ({times}), not {expected}"
        for answer in self.answers:
            is_dead = answer.op in ("schedule", "redrive") and (
                self.rules.refusals.get(answer.source) != "duplicate"
            )
            is_dead |= self.rules.refusals.get(answer.source) == "rejected"
            found = {t: n for t, n in self.produced[answer.source].items() if t == DEAD}
            if answer not in self.messages:
                assert found == ({DEAD: 1} if is_dead else {}), f"{answer.source}: {found}"
        known = {request.source for request in self.messages + self.answers}
        assert set(self.produced) <= known, f"unasked: {set(self.produced) - known}"

    def check_not_early(self, topic: str, record: Record, request: Request) -> int:
        """Check the time by the deliverer's clock and by the broker's. Return the former."""
        source = request.source
        fired_ms = int(dict(record.headers)["delayd-fired"] or 0)
        assert fired_ms >= request.due_ms, f"{source} fired early: {fired_ms}"
        # Stronger than what is promised of the due time, which is not after `fired_ms`.
        assert self._latest_ms(topic, record) >= fired_ms, (
            f"{source} early by the clock of its topic: {fired_ms} at {record.append_ms}"
        )
        return fired_ms

    def check_verdicts(self) -> None:
        """Check verdicts: true, exactly one for each cancel marker, and no killed message
        arrives."""
        last: dict[tuple[int, str], tuple[Request, set[str], list[Request]]] = {}
        answered = {marker.source for marker in self.answers}
        ended, of_series = self.killed | self.series.cut, self.series.sources
        arrived = {self.rules.origin_of(source) for source, into in self.produced.items() if into}
        for message in self.messages:
            if message.op == "debounce" and message.source not in answered:
                given = [v for v in self.verdicts[message.source] if v["verdict"] not in LATER]
                assert not given, f"{message.source} is one of several: {given}"
        for source, given in self.verdicts.items():
            assert len(given) == 1 or source in {m.source for m in self.messages}, given
        for marker in self.answers:
            if marker.source in self.rules.refusals:
                assert [v["verdict"] for v in self.verdicts[marker.source]] == [
                    self.rules.refusals[marker.source]
                ]
            elif marker.op == "redrive":
                # Always one answer; what became of the message may follow it.
                first = [v for v in self.verdicts[marker.source] if v["verdict"] not in LATER]
                expected = "rejected" if marker.expects == "answer" else "scheduled"
                assert [(v["verdict"], v["op"]) for v in first] == [(expected, "redrive")], first
                assert {v["id"] for v in first} == {marker.id or marker.redrive}
            if marker.op in MOVES and marker.source not in self.rules.refusals:
                last = self.moves.check_verdict(marker, last)
            if marker.op not in ("cancel", "replace", "debounce"):
                continue
            marked = [v for v in self.verdicts[marker.source] if v["verdict"] not in LATER]
            assert len(marked) == 1, f"{marker.source}: {marked}"
            if repeated := self.rules.repeats.get(marker.source):
                self._check_repeated(marker, repeated)
                continue
            verdict, killed = marked[0]["verdict"], set(marked[0]["killed"])
            targets = {m.source for m in self.rules.targets_of[marker.source]}
            truly = {self.rules.origin_of(source) for source in targets & ended}
            assert arrived.isdisjoint(killed - of_series), f"{killed} arrived"
            # Of what is Done, a node may have dropped what was due long before.
            floor_ms = self.rules.as_of_ms[marker.source] - self._id_memory_ms
            counting = [
                m
                for m in self.rules.targets_of[marker.source]
                if m.source in ended or m.due_ms >= floor_ms
            ]
            assert marker.id is not None, "a marker is about an id"
            place = (marker.partition, marker.id)
            before = last.get(place)
            if counting and self._is_steady(marker) and marker.op != "debounce":
                last[place] = (marker, truly, counting)
            if truly:
                expected = "cancelled" if marker.op == "cancel" else "replaced"
            elif counting:
                expected = "too-late"
            elif marker.op != "cancel":
                expected = "scheduled"
            elif before is not None and max(m.due_ms for m in before[2]) >= floor_ms:
                # The same is asked again, while what it is about is remembered: the same answer.
                truly, counting = before[1:]
                expected = "cancelled" if truly else "too-late"
                self.repeated[expected] += 1
            else:
                expected = "cancelled" if killed else "not-found"
            assert verdict == expected, f"{marker.source}: {marked}, kills {targets}"
            where = f"{marker.source}: {killed}"
            assert killed == truly or not (truly or counting), f"{where} not {truly}"
            known = {self.rules.origin_of(source) for source in ended}
            assert killed <= known, f"{where} are not killed"

    def _check_repeated(self, marker: Request, first: Request) -> None:
        """Check that a replace that is sent again is told what the first one was."""
        answers = (self.verdicts[source] for source in (marker.source, first.source))
        told, before = (
            [(v["verdict"], v["killed"]) for v in given if v["verdict"] not in LATER]
            for given in answers
        )
        assert told == before, f"{marker.source} repeats {first.source}: {told}, not {before}"
        self.repeated[f"replace: {told[0][0]}"] += 1

    def _is_steady(self, marker: Request) -> bool:
        """Return whether the rules of version 4 rule a marker."""
        place = (marker.partition, marker.offset)
        return self.rules_version >= 4 or any(
            partition == place[0] and offset < place[1] for partition, offset in self.rules.barriers
        )

    def _latest_ms(self, topic: str, record: Record) -> int:
        """Return the latest time that the clock which stamped a record may have shown before it
        was set back."""
        if self.kafka.topics[topic].setting("message.timestamp.type") == "CreateTime":
            return record.append_ms + self._nodes_stepped_back_ms
        return record.append_ms + self._brokers_stepped_back_ms

    def _is_followed(self, message: Request) -> bool:
        """Return whether it is of a series, and was delivered or died before what continues it."""
        return message.source in self.retries and self.retries[message.source].follows

    def _reached(self, message: Request, topic: str) -> bool:
        return self.produced[message.source][topic] > 0

    def targets(self) -> list[str]:
        return [*(t for t in self.kafka.topics if not t.startswith("delayd-")), DEAD]

    def _produced(self) -> dict[str, Counter[str]]:
        """Return how often each source arrived in which topic."""
        produced: dict[str, Counter[str]] = defaultdict(Counter)
        for topic in self.targets():
            for record in self.committed(topic):
                source = dict(record.headers)["delayd-source"] or b""
                produced[source.decode()][topic] += 1
        return produced

    def _verdicts(self) -> dict[str, list[dict[str, Any]]]:
        verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in self.committed(RECEIPTS):
            fields = json.loads(record.value or b"")
            verdicts[fields["source"]].append(fields)
        return verdicts

    def check_order(self) -> None:
        """Check rank order per target partition; late arrivals follow at once."""
        by_source = {request.source: request for request in self.messages}
        for topic in self.kafka.topics:
            if topic.startswith("delayd-"):
                continue
            for log in self.kafka.topics[topic].partitions:
                sources = [
                    (dict(record.headers)["delayd-source"] or b"").decode()
                    for record in log.read(0, 10**9)[0]
                ]
                # Continuations come back when they may, in no order with the rest.
                sources = [s for s in sources if by_source[s].op != "continue"]
                for shard in range(self.shards):
                    mine = [s for s in sources if by_source[s].partition % self.shards == shard]
                    in_time = [by_source[s].rank for s in mine if s not in self.late]
                    assert in_time == sorted(in_time), f"{topic}: out of order"
                    by_step = [(self.step_of[s], by_source[s].rank) for s in mine]
                    assert by_step == sorted(by_step), f"{topic}: a step is out of order"

    def check_rates(self) -> None:
        """Check smoothing: by the times of the steps no more go out than the rate allows."""
        if self._nodes_stepped_back_ms + self._brokers_stepped_back_ms > CLOCKS_APART_MS:
            return
        for topic, rate in self.rates.items():
            fired_ms = sorted(
                int(dict(r.headers)["delayd-fired"] or 0) for r in self.committed(topic)
            )
            for first, from_ms in enumerate(fired_ms):
                for last in range(first, len(fired_ms)):
                    allowed = rate * (fired_ms[last] - from_ms + BORROWED_MS) / 1_000
                    assert last - first < allowed + self.shards, (
                        f"{topic}: {last - first + 1} from {from_ms} on"
                    )

    def check_smoothed_order(self) -> None:
        """Check smoothing: only where there is a rate, and messages that came back in time keep
        their order."""
        smoothed = {m.topic for m in self.messages if m.turn is not None}
        may_wait = set(self.rates) | self.pauses.topics
        assert smoothed <= may_wait, f"{smoothed} have no rate"
        families: dict[str, list[Request]] = defaultdict(list)
        for message in self.messages:
            families[self.rules.origin_of(message.source)].append(message)
        for topic in sorted(may_wait):
            for log in self.kafka.topics[topic].partitions:
                ranks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
                for record in log.read(0, 10**9)[0]:
                    source = (dict(record.headers)["delayd-source"] or b"").decode()
                    origin, *others = families[self.rules.origin_of(source)]
                    # What was written after its turn had come ranks by when it was written.
                    is_smoothed = all(m.turn is not None and m.due_ms > m.append_ms for m in others)
                    if is_smoothed and not {m.source for m in (origin, *others)} & self.late:
                        ranks[origin.partition % self.shards].append(origin.rank)
                        self.smoothed += bool(others)
                for one, other in chain.from_iterable(map(pairwise, ranks.values())):
                    assert one <= other, f"{topic}: {other} came after {one}"

    def committed(self, topic: str) -> list[Record]:
        return committed(self.kafka, topic, self._gone)

    def _request(self, record: Record) -> Request:
        headers = {name: (content or b"").decode() for name, content in record.headers}
        if is_unread := isinstance(record, UnreadableBatch):  # all of it is one, and refused
            headers = {"expects": "answer"}
        is_barrier = self._barriers.get((record.partition, record.offset))
        if is_barrier is not None:
            headers |= {"delayd-op": "switch" if is_barrier else "schedule", "expects": "answer"}
        if (is_order := self._orders.get((record.partition, record.offset))) is not None:
            is_order = is_order and is_good(headers["delayd-hold"], record.append_ms)
            headers |= {"delayd-op": "hold" if is_order else "schedule", "expects": "answer"}
        place = record.partition, record.offset, record.append_ms
        headers |= self._quotas.read(*place, headers)
        continues = headers.get("delayd-continues")
        redrive = headers.get("delayd-redrive")
        is_local = headers.keys() >= {"delayd-due", "delayd-zone"} and continues is None
        local = f"{headers['delayd-due']}[{headers['delayd-zone']}]" if is_local else ""
        planned_ms = planned_of(headers, f"{record.partition}/{record.offset}")
        due_ms = int(headers.get("delayd-next-due", planned_ms))
        return Request(
            partition=record.partition,
            offset=record.offset,
            op="continue"
            if continues
            else "redrive"
            if redrive
            else "settle"
            if "delayd-settles" in headers
            else headers.get("delayd-op", "schedule"),
            id=headers.get("delayd-id"),
            topic=headers.get("delayd-topic", ""),
            due_ms=max(due_ms, record.append_ms),
            asked=headers.get("delayd-due") or headers.get("delayd-delay", ""),
            append_ms=record.append_ms,
            continues=None if continues is None else int(continues),
            redrive=redrive,
            expects=headers.get("expects", ""),
            value=None if is_unread else record.value,
            turn=headers.get("delayd-turn"),
            trace=headers.get("traceparent"),
            is_told="delayd-receipt" in headers,
            late=headers.get("delayd-late", ""),
            window=headers.get("delayd-window", ""),
            group=headers.get("delayd-group", ""),
            planned_ms=planned_ms,
            series="|".join(headers.get(f"delayd-{name}", "") for name in SERIES)
            if "delayd-cron" in headers
            else "",
            occurrence=int(headers.get("delayd-occurrence", 0)),
            state="no"
            if is_local
            else headers.get("delayd-resolved", headers.get("delayd-series", "")),
            local=headers.get("delayd-local", local),
            follows="delayd-follows" in headers,
            by=headers.get("delayd-by", ""),
            moved_by=int(headers.get("delayd-moved-by", -1)),
            moved=headers.get("delayd-moved", ""),
            order=headers.get("delayd-hold", ""),
            max_wait=headers.get("delayd-max-wait", ""),
            is_deferred=headers.get("delayd-attempt") == "0",
        )
