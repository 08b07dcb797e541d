"""The hot path of a step does as the general path does, and takes nothing that it must not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import START_MS
from one_node import OneNode, nodes_in

from delayd.bus import Ack, Headers
from delayd.bus.flat import Outgoing, send_each
from delayd.node.delivery.flat_step import FlatStep
from delayd.node.delivery.order_step import OrderStep
from delayd.node.delivery.planner import FlatPiece, Piece, StepContent
from delayd.node.delivery.step_writer import StepWriter
from delayd.node.targets.quarantine import Quarantine
from delayd.request import Wishes, size_of
from delayd.request.bodies import plain_message_body
from delayd.runtime import native
from delayd.runtime.native.unpacking import Frames
from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.frame import HEADER_BYTES, encode, read_body
from replication.delivery_queue import Plan
from replication.frontier import stand_still
from replication.quotas import Quotas
from replication.settings import RECEIPTS_ALL
from replication.smoothing import Smoothing

PARTITIONS = 3
Sent = tuple[str, bytes | None, bytes | None, Headers, int | None]


class Recorder:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def send(
        self, topic: str, *, partition: int | None = None, on_ack: Any = None, **record: Any
    ) -> None:
        headers = list(record["headers"])
        self.sent.append((topic, record["key"], record["value"], headers, partition))
        if on_ack is not None:
            on_ack(Ack(partition or 0, len(self.sent), START_MS))

    def send_flat(self, records: Outgoing) -> None:
        send_each(self, records)

    def flush(self, timeout_ms: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    """Knows targets of every kind."""
    folder: Path = tmp_path_factory.mktemp("plain")
    with nodes_in(folder) as make_node:
        made = make_node("smoothed", partitions=4, rates={"smoothed": 1})
        stamped = {"message.timestamp.type": "LogAppendTime"}
        for name in ("a", "b"):
            made.kafka.create_topic(name, PARTITIONS, stamped)
        made.kafka.create_topic("compacted", 1, {**stamped, "cleanup.policy": "compact"})
        made.kafka.create_topic("small", 1, {**stamped, "max.message.bytes": "4000"})
        yield made


def write(
    node: OneNode,
    frames: list[Frame],
    quarantine: Quarantine,
    flat_step: FlatStep | None = None,
    **changed: object,
) -> tuple[StepWriter, list[Sent]]:
    """What a step sends of these messages, natively read if `flat_step` is given."""
    frontier = node.replica.newest
    assert frontier is not None
    before = frontier.record.frontier
    plan = Plan(before, stand_still(before), START_MS + 5)
    producer = Recorder()
    context = replace(node.delivery_context(), quarantine=quarantine)
    if flat_step is not None:
        context = replace(context, flat_step=flat_step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.replica, "settings", replace(node.settings, **changed))  # type: ignore[arg-type]
        smoothing = Smoothing(node.rates, {}, node.settings.max_delay_ms)
        orders = OrderStep(smoothing, Quotas({}), (), node.replica.limits, plan.now_ms)
        writer = StepWriter(context, producer, plan, orders)
    pieces = [Piece(frames[:7], 0), Piece(frames[7:], 0)]
    if flat_step is None:
        writer.write(StepContent(pieces))
    else:
        writer.write(StepContent([flat(piece.messages) for piece in pieces if piece.messages]))
    return writer, producer.sent


def flat(frames: Sequence[Frame]) -> FlatPiece:
    """The frames as they are read natively."""
    entries, by_entry, position = [], {}, 0
    data = bytearray()
    for frame in frames:
        encoded, _ = encode(frame)
        entry = Entry(*frame[:5], position, len(encoded))
        entries.append(entry)
        by_entry[entry] = frame
        data += encoded
        position += len(encoded) + 7
    numbers = Frames.room_for(entries).numbers
    read = lambda some: Piece([by_entry[entry] for entry in some], 0)  # noqa: E731
    return FlatPiece(entries, Frames(numbers, data), read)


def suspicious() -> Quarantine:
    """Something is held against a record that is in no step: nothing is plain."""
    quarantine = Quarantine()
    quarantine.note_refused(0, {"elsewhere": "INVALID_RECORD"}, "", {"elsewhere": (0, ["9/9"])})
    assert not quarantine.is_empty
    return quarantine


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
pairs = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
plain_pairs = st.sampled_from([(), (("h", None),), (("a", b""), ("a", b"\xff"))])
puts_back = st.sampled_from([("", 0), ("", 0), ("0/3", 0), ("0/3", 2)])


lateness = st.none() | st.sampled_from([1, 5, 8, 10**9])
wishes = st.builds(Wishes, is_told=st.booleans(), late_ms=lateness, window_ms=lateness)


@st.composite
def frames(draw: st.DrawFn, is_plain: bool = False) -> Frame:
    """A message as the wheel gives it back; a plain one was never requeued, and has no id."""
    topic = draw(st.sampled_from(["a", "a", "b", "compacted", "small", "missing", "smoothed"]))
    due_ms = START_MS - draw(st.integers(0, 3))
    origin, attempt = ("", 0) if is_plain else draw(puts_back)
    id = (
        None
        if is_plain
        else draw(st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=4))
    )
    body: tuple[Any, ...] = (
        topic,
        due_ms + draw(st.integers(-1, 0)),
        draw(st.none() | st.binary(max_size=4)),
        draw(st.none() | st.binary(max_size=4) | st.just(b"x" * 5_000)),
        draw(plain_pairs if is_plain else pairs),
        draw(st.none() | st.integers(0, PARTITIONS)),
        id,
        b"" if id is None else b"d" * 16,
        origin,
        attempt,
    )
    turn = (due_ms, due_ms) if origin and draw(st.booleans()) else None
    if not is_plain and draw(st.booleans()):
        body += (turn, draw(wishes))
    elif turn is not None:
        body += (turn,)
    partition, offset = draw(st.integers(0, 3)), draw(st.integers(0, 10**6))
    frame = Frame(due_ms, partition, offset, 0, FrameKind.MESSAGE, START_MS, body)
    data, _ = encode(frame)
    return frame._replace(body=read_body(data[HEADER_BYTES:]))


@given(st.lists(frames(), max_size=14))
@settings(deadline=None)
def test_a_step_writes_the_same_however_it_asks(node: OneNode, messages: list[Frame]) -> None:
    """Rules: fast-as-general"""
    fast, sent = write(node, messages, Quarantine())
    general, wanted = write(node, messages, suspicious())
    assert sent == wanted
    assert _counted(fast) == _counted(general)
    for topic, (lane, sources) in general.sent.items():
        assert fast.sent[topic][0] == lane
        assert list(fast.sent[topic][1]) == list(sources)


mostly_plain = st.one_of(*[frames(is_plain=True)] * 5, frames())


@given(st.lists(mostly_plain, max_size=14), st.sampled_from([1, 2, 4]))
@settings(deadline=None)
def test_a_step_writes_the_same_natively(
    node: OneNode, library: native.Library, messages: list[Frame], run_min: int
) -> None:
    """Rules: fast-as-general"""
    compare(node, library, messages, run_min)


def compare(
    node: OneNode, library: native.Library, messages: list[Frame], run_min: int
) -> list[Sent]:
    """What a step sends of these messages, by both paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", library)
        flat_step = FlatStep(run_min)
    by_c, sent = write(node, messages, Quarantine(), flat_step)
    fast, wanted = write(node, messages, Quarantine())
    assert sent == wanted
    assert _counted(by_c) == _counted(fast)
    for topic, (lane, sources) in fast.sent.items():
        assert by_c.sent[topic][0] == lane
        assert sorted(by_c.sent[topic][1]) == sorted(sources)
    return sent


@pytest.mark.parametrize("topics", [("a",), ("a", "b")], ids=["one target", "two"])
def test_a_run_is_sent_up_to_a_partition_that_is_not_there(
    node: OneNode, library: native.Library, topics: tuple[str, ...]
) -> None:
    messages = []
    for offset, wanted in enumerate((0, PARTITIONS - 1, PARTITIONS, None, 1)):
        body = plain_message_body(topics[offset % len(topics)], START_MS, b"k", b"v", [], wanted)
        messages.append(Frame(START_MS, 0, offset, 0, FrameKind.MESSAGE, START_MS, body))
    sent = compare(node, library, messages, 1)
    assert [partition for _, _, _, _, partition in sent if partition == PARTITIONS] == []
    assert [topic for topic, *_ in sent].count("delayd-buffer") == 1, "one is retried"


def _counted(writer: StepWriter) -> list[Any]:
    """Without the targets to which nothing was sent."""
    dues_ms = {topic: times_ms for topic, times_ms in writer.dues_ms.items() if times_ms}
    names = "own_writes fates message_count killed_count digest turned_away smoothed_ms"
    return [dues_ms, *(getattr(writer, n) for n in (*names.split(), "verdicts", "letters"))]


def test_only_a_target_that_takes_all_is_plain(node: OneNode) -> None:
    bytes_max = node.replica.limits.record_bytes_max + 8 * 1024
    node.targets.look_up(["a", "compacted", "small", "missing"])
    assert node.targets.partitions_for_all("a", bytes_max) == PARTITIONS
    for name in ("compacted", "small", "missing"):
        assert node.targets.partitions_for_all(name, bytes_max) is None, name
    assert node.targets.partitions_for_all("a", 1_048_588) is None, "a batch takes room too"


def test_the_largest_request_is_no_larger_than_what_plain_targets_take(node: OneNode) -> None:
    """A delivered record is larger than its request by what delayd adds, which is bounded."""
    added: Headers = [
        ("delayd-id", b"x" * 1_024),
        ("delayd-due", b"9" * 20),
        ("delayd-fired", b"9" * 20),
        ("delayd-source", b"9" * 30),
    ]
    assert size_of(None, None, added) < 8 * 1024


def test_receipts_of_all_deliveries_are_not_left_out(node: OneNode) -> None:
    body = ("a", START_MS, None, b"v", (), None, "id", b"d" * 16, "", 0)
    frame = Frame(START_MS, 0, 1, 0, FrameKind.MESSAGE, START_MS, body)
    writer, sent = write(node, [frame], Quarantine(), receipts_written=RECEIPTS_ALL)
    assert [topic for topic, *_ in sent] == ["a", node.settings.receipts.name]
    assert sum(writer.verdicts.values()) == 1
