"""The requests of users: messages with and without ids, some inside their own transactions."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from zlib import crc32

from kernel import Kernel

from delayd.bus import Headers
from delayd.bus.memory import MemoryBus, MemoryKafka, Refused, Silence
from delayd.bus.murmur2 import partition_of
from delayd.errors import ProducerError

LANES = 64
IDS = ("one", "two", "three", "four")
FAR_MS = 3_600_000
"""Due so much later that the run has ended before."""
TIMEOUT_MS = 1_000
USER = "a-user"
PAUSES_US = ((1_000, 50_000, 200_000, 900_000), (1_000, 50_000, 3_500_000))
"""Between two bursts: some users are never silent for long."""
ASKED_AFTER_MS = ((-400, 60), (100, 900), (1_000, 3_500), (3_000, 7_000))
"""When cancels of one id are sent, from its due time on: the first may come too late, and what it
was told must be told again."""
WINDOWS = (b"50ms", b"700ms", b"3s")
GROUPS = (b"a-group", b"another", "grün".encode())
LATE = (b"1ms", b"20ms", b"300ms", b"2s", b"1h")
CRONS = (b"* * * * * *", b"*/2 * * * * *", b"*/5 * * * * *")
OPEN_MS_MAX = 2_500
"""How long a user's transaction stays open, hiding what is behind it."""


def topic_in_lane_of(topic: str) -> str:
    """Return another topic that shares its lane."""
    wanted = crc32(topic.encode()) % LANES
    return next(
        name for n in range(10**6) if crc32((name := f"shared-{n}").encode()) % LANES == wanted
    )


TARGETS: Mapping[str, tuple[int, dict[str, str]]] = {
    "orders": (2, {"message.timestamp.type": "LogAppendTime"}),
    topic_in_lane_of("orders"): (1, {}),
    "mails": (1, {"message.timestamp.type": "LogAppendTime"}),
    "calls": (3, {}),
    "states": (1, {"cleanup.policy": "compact"}),
}
"""Partitions and settings. Without LogAppendTime a record carries the delivering node's clock."""


class Users:
    """Everything that is written to the buffer from outside."""

    def __init__(
        self,
        kernel: Kernel,
        kafka: MemoryKafka,
        chance: Random,
        partitions: int,
        traces: Random | None = None,
        wishes: Random | None = None,
        has_series: bool = False,
        has_local_times: bool = False,
    ) -> None:
        """`traces`: a tracing agent adds a header, another one at each send. `wishes`: some
        messages have wishes, in rules that know them or not. `has_series`: some recur.
        `has_local_times`: some are due by the clock of a zone."""
        self._has_series = has_series
        self._has_local_times = has_local_times
        self._traces = traces
        self._wishes = wishes
        self._kernel = kernel
        self._kafka = kafka
        self._chance = chance
        self._partitions = partitions
        self._bus = MemoryBus(kafka)
        self._producer = self._bus.transactional_producer(USER)
        self._producer.init_transactions(TIMEOUT_MS)
        self._is_inside = False
        self._pauses_us = chance.choice(PAUSES_US)
        self._hot_ms = 0
        self.ids: tuple[str, ...] = IDS
        self.far_share = 0.03
        """How much of it is due much later."""
        self.far_ms: Callable[[], int] = lambda: FAR_MS
        """Draws how much later."""
        self.sent = 0
        self.is_done = False
        self.is_away = False
        """True while they send nothing, for a while."""

    def run(self) -> None:
        """Send bursts and single requests until told to stop; as a task."""
        while not self.is_done:
            if self.is_away:
                self._kernel.sleep(PAUSES_US[0][-1])
                continue
            if self._chance.random() < 0.15:
                self.race()
            else:
                self.send()
            self._kernel.sleep(self._chance.choice(self._pauses_us))

    def send(self) -> None:
        """Send some requests, perhaps inside a transaction of the user's own."""
        chance = self._chance
        now_ms = self._kafka.clock.wall_ms()
        if self._hot_ms < now_ms - 1_000 or chance.random() < 0.1:
            self._hot_ms = now_ms + chance.randint(1_000, 5_000)
        around_ms = chance.choice(
            [now_ms - 2_000, now_ms, now_ms + 50, now_ms + 700, now_ms + 4_000, self._hot_ms]
        )
        spread_ms = chance.choice([0, 0, 5, 1_000, 6_000])
        if chance.random() < self.far_share:
            around_ms += self.far_ms()
        partition = chance.choice([None, chance.randrange(self._partitions)])
        count = chance.choice([1, 1, 2, 3, 12])
        inside = chance.random() < 0.2
        if inside:
            self._producer.begin()
            self._is_inside = True
        for _ in range(count):
            try:
                self._send_one(around_ms + chance.randint(0, spread_ms), partition, inside)
            except (Refused, Silence):
                break  # The partition has no leader, or one that hangs; this user gives up.
        if inside:
            if chance.random() < 0.4:
                self._kernel.sleep(chance.randrange(OPEN_MS_MAX * 1_000))
            self.end_transaction(commit=chance.random() < 0.6)

    def race(self) -> None:
        """Send a message that must be retried, and cancels of it and others just when it is due."""
        chance = self._chance
        due_ms = self._kafka.clock.wall_ms() + chance.randint(50, 400)
        self._try(lambda: self._about(chance.choice(self.ids), "replace", due_ms))
        wait_ms = due_ms - self._kafka.clock.wall_ms() + chance.randint(-20, 20)
        self._kernel.sleep(max(0, wait_ms) * 1_000)
        for _ in range(chance.choice([3, 8])):
            self._try(lambda: self._about(chance.choice(self.ids), "cancel", due_ms))

    def doubt(self, chance: Random) -> None:
        """Schedule messages under ids of their own, and ask for each to be cancelled or replaced
        several times in the same words, before and after it is due; as a task."""
        asks: list[tuple[int, Callable[[], None]]] = []
        count = 0
        while not self.is_done:
            if self.is_away:
                self._kernel.sleep(PAUSES_US[0][-1])
                continue
            now_ms = self._kafka.clock.wall_ms()
            if chance.random() < 0.3:
                count += 1
                id, due_ms = f"doubted-{count}", now_ms + chance.randint(200, 2_000)
                topic = chance.choice(["orders", "mails", "nowhere"])
                op = chance.choice(["schedule", "replace"])
                self._try(partial(self._about, id, op, due_ms, topic))
                again = partial(self._about, id, "cancel", 0)
                if chance.random() < 0.5:
                    new_due_ms = due_ms + chance.randint(-100, 3_000)
                    self.sent += 1
                    again = partial(self._about, id, "replace", new_due_ms, value=b"%d" % self.sent)
                asks += [(due_ms + chance.randint(*after_ms), again) for after_ms in ASKED_AFTER_MS]
            for ask in sorted((ask for ask in asks if ask[0] <= now_ms), key=lambda ask: ask[0]):
                asks.remove(ask)
                self._try(ask[1])
            self._kernel.sleep(chance.choice([20_000, 300_000]))

    def move(self, chance: Random) -> None:
        """Schedule messages under ids of their own, and give them other due times, several at once
        or around the time when they are due; as a task."""
        asks: list[tuple[int, Callable[[], None]]] = []
        count = 0
        while not self.is_done:
            if self.is_away:
                self._kernel.sleep(PAUSES_US[0][-1])
                continue
            now_ms = self._kafka.clock.wall_ms()
            if chance.random() < 0.4:
                count += 1
                id, due_ms = f"moved-{count}", now_ms + chance.randint(100, 2_500)
                topic = chance.choice(["orders", "orders", "mails", "nowhere"])
                self._try(partial(self._about, id, "schedule", due_ms, topic))
                around_ms = chance.choice([now_ms, due_ms])
                for _ in range(chance.choice([1, 1, 2, 4])):
                    at_ms = around_ms + chance.randint(-30, chance.choice([5, 60, 1_500]))
                    asks.append((at_ms, partial(self._move_one, id, due_ms, chance)))
            for ask in sorted((ask for ask in asks if ask[0] <= now_ms), key=lambda ask: ask[0]):
                asks.remove(ask)
                self._try(ask[1])
            self._kernel.sleep(chance.choice([5_000, 20_000, 300_000]))

    def debounce(self, chance: Random) -> None:
        """Send messages of which the last one counts, in bursts and in streams that do not end for
        a while, and other requests about their ids between them; as a task."""
        asks: list[tuple[int, Callable[[], None]]] = []
        count = 0
        while not self.is_done:
            if self.is_away:
                self._kernel.sleep(PAUSES_US[0][-1])
                continue
            now_ms = self._kafka.clock.wall_ms()
            # Few, for a target may take no more than two a second.
            if chance.random() < 0.12 and len(asks) < 40:
                count += 1
                id = chance.choice([*self.ids, f"debounced-{count // 3}"])
                topic = chance.choice(["orders", "orders", "mails", "nowhere"])
                delay_ms = chance.choice([5, 60, 400, 1_500])
                max_wait_ms = delay_ms + chance.choice([0, 30, 500, 2_000])
                every_ms = chance.choice([1, delay_ms // 2 + 1, delay_ms, delay_ms * 2])
                at_ms = now_ms
                for _ in range(chance.choice([1, 2, 5, 12])):
                    one = partial(self._debounce_one, id, topic, delay_ms, max_wait_ms, chance)
                    asks.append((at_ms, one))
                    at_ms += chance.choice([0, every_ms, every_ms])
                    if chance.random() < 0.08:
                        asks.append((at_ms, partial(self._move_one, id, at_ms + delay_ms, chance)))
            for ask in sorted((ask for ask in asks if ask[0] <= now_ms), key=lambda ask: ask[0]):
                asks.remove(ask)
                self._try(ask[1])
            self._kernel.sleep(chance.choice([1_000, 5_000, 20_000, 200_000]))

    def _debounce_one(
        self, id: str, topic: str, delay_ms: int, max_wait_ms: int, chance: Random
    ) -> None:
        self.sent += 1
        headers: Headers = [("delayd-id", id.encode()), ("delayd-op", b"debounce")]
        headers += [("delayd-topic", topic.encode()), ("delayd-delay", b"%dms" % delay_ms)]
        headers.append(("delayd-max-wait", b"%dms" % max_wait_ms))
        if chance.random() < 0.2:
            headers.append(("delayd-receipt", b"yes"))
        if chance.random() < 0.1:
            headers.append(("delayd-late", chance.choice(LATE)))
        headers.append(("expects", b"dead" if topic == "nowhere" else b"delivered"))
        partition = partition_of(id.encode(), self._partitions)
        self._kafka.append("delayd-buffer", partition, id.encode(), b"%d" % self.sent, headers)

    def _move_one(self, id: str, due_ms: int, chance: Random) -> None:
        """Ask for one change of a message, or for the same message again."""
        id = chance.choice([id, id, id, chance.choice(self.ids)])
        op = chance.choice(["reschedule", "reschedule", "fire", "cancel", "replace", "schedule"])
        if op in ("cancel", "replace", "schedule"):
            self._about(
                id, op, due_ms + chance.choice([0, 700]), chance.choice(["orders", "mails"])
            )
            return
        headers: Headers = [("delayd-id", id.encode()), ("delayd-op", op.encode())]
        if op == "reschedule":
            now_ms = self._kafka.clock.wall_ms()
            due = b"%d" % (now_ms + chance.randint(-200, 3_000))
            by = b"%+dms" % chance.randint(-1_000, 2_000)
            headers.append(chance.choice([("delayd-due", due), ("delayd-by", by)]))
        headers.append(("expects", b"answer"))
        partition = partition_of(id.encode(), self._partitions)
        self._append(partition, id.encode(), None, headers, False)

    def _about(
        self, id: str, op: str, due_ms: int, topic: str = "nowhere", value: bytes | None = None
    ) -> None:
        self.sent += 1
        headers: Headers = [("delayd-id", id.encode()), ("delayd-op", op.encode())]
        expects = b"answer"
        if op != "cancel":
            headers += [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
            expects = b"dead" if topic == "nowhere" else b"delivered"
        headers.append(("expects", expects))
        partition = partition_of(id.encode(), self._partitions)
        self._append(partition, id.encode(), value or b"%d" % self.sent, headers, False)

    def _try(self, send: Callable[[], None]) -> None:
        with suppress(Refused, Silence):  # No leader, or one that hangs; this user gives up.
            send()

    def burst(self) -> None:
        """Send requests that are due at once or soon."""
        now_ms = self._kafka.clock.wall_ms()
        try:
            for _ in range(self._chance.choice([3, 12])):
                self._send_one(now_ms + self._chance.randint(0, 900), None, False)
        except (Refused, Silence):
            pass  # A partition has no leader, or one that hangs.

    def end_transaction(self, *, commit: bool) -> None:
        """End what is open."""
        if not self._is_inside:
            return
        self._is_inside = False
        try:
            if commit and self._kafka.coordinator.holders[USER].touched:
                self._producer.commit(TIMEOUT_MS)
                return
        except ProducerError:
            pass  # Expired, or refused for want of a leader: its successor aborts it.
        self._producer.close()
        self._producer = self._bus.transactional_producer(USER)
        self._producer.init_transactions(TIMEOUT_MS)

    def _send_one(self, due_ms: int, partition: int | None, inside: bool) -> None:
        chance = self._chance
        self.sent += 1
        value = b"%d" % self.sent
        key = chance.choice([None, b"a", b"b"])
        if chance.random() < 0.4:
            self._send_with_id(due_ms, value, inside)
            return
        expects, topic = "delivered", chance.choice(list(TARGETS))
        if topic == "states" and key is None:
            expects = "dead"
        if chance.random() < 0.05:
            expects, topic = "dead", "nowhere"
        headers: Headers = [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
        if chance.random() < 0.05:
            expects = "answer"
            headers.append(("delayd-tipo", b"x"))
        headers.append(("expects", expects.encode()))
        if partition is None:
            partition = chance.randrange(self._partitions)
        self._redrive(headers, partition)
        self._append(partition, key, value, headers, inside)

    def _send_with_id(self, due_ms: int, value: bytes, inside: bool) -> None:
        """Send a request about one of a few ids, so that they meet."""
        chance = self._chance
        id = chance.choice(self.ids)
        op = chance.choice(["schedule", "schedule", "cancel", "replace"])
        topic = chance.choice(["orders", "mails", "nowhere"])
        headers: Headers = [("delayd-id", id.encode()), ("delayd-op", op.encode())]
        if op != "cancel":
            # Now and then the very same request comes again.
            if chance.random() < 0.3:
                value, due_ms, topic = b"again", due_ms // 4_000 * 4_000, "orders"
            headers.append(("delayd-topic", topic.encode()))
            headers.append(("delayd-due", b"%d" % due_ms))
        expects = b"dead" if topic == "nowhere" else b"delivered"
        headers.append(("expects", b"answer" if op == "cancel" else expects))
        partition = partition_of(id.encode(), self._partitions)
        if op == "schedule":
            self._redrive(headers, partition)
        self._append(partition, id.encode(), value, headers, inside)

    def _redrive(self, headers: Headers, partition: int) -> None:
        """Let a schedule say, now and then, that it sends one of a few dead letters again."""
        if self._chance.random() < 0.1:
            source = f"{partition}/{self._chance.randrange(8)}"
            headers.append(("delayd-redrive", source.encode()))

    def _append(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        inside: bool,
    ) -> None:
        if (
            self._wishes is not None
            and value is not None
            and any(name == "delayd-topic" for name, _ in headers)
        ):
            now_ms = self._kafka.clock.wall_ms()
            recurring = _recurring(headers, value, now_ms) if self._has_series else None
            wishes = _drawn(self._wishes, value)
            if any(name == "delayd-id" for name, _ in headers) and crc32(value) % 3 == 0:
                wishes.append(("delayd-group", GROUPS[crc32(value) // 3 % len(GROUPS)]))
            if recurring is None and self._has_local_times:
                headers = _by_the_clock(headers, value)
            if recurring is not None:
                headers, wishes = recurring, [each for each in wishes if each[0] != "delayd-window"]
            headers = [*headers, *wishes]
        if self._traces is not None:
            headers = [*headers, ("traceparent", b"00-%032x" % self._traces.getrandbits(128))]
        if inside:
            self._producer.send(
                "delayd-buffer", key=key, value=value, headers=headers, partition=partition
            )
        else:
            self._kafka.append("delayd-buffer", partition, key, value, headers)


def _recurring(headers: Headers, value: bytes, now_ms: int) -> Headers | None:
    """Return the headers of a series in place of those of a message; None if it stays one."""
    number = crc32(b"series" + value)
    due_ms = int(dict(headers)["delayd-due"] or 0)
    if number % 8 or not -10_000 < due_ms - now_ms < 30_000:
        return None
    others = [each for each in headers if each[0] != "delayd-due"]
    series: Headers = [("delayd-cron", CRONS[number // 8 % len(CRONS)])]
    series.append(("delayd-until", b"%d" % (due_ms + number % 5 * 1_000)))
    if number // 64 % 3 == 0:
        series.append(("delayd-catchup", b"all"))
    if number // 64 % 2:
        series.append(("delayd-zone", b"Asia/Kolkata"))
    return [*others, *series]


def _by_the_clock(headers: Headers, value: bytes) -> Headers:
    """Return the headers of a message with a local time; or these if it has none."""
    number = crc32(b"local" + value)
    if number % 6:
        return headers
    due_ms = int(dict(headers)["delayd-due"] or 0)
    zone = ("UTC", "Asia/Kolkata", "Pacific/Honolulu", "Mars/Olympus")[number // 8 % 4]
    shown = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=due_ms)
    shown += timedelta(minutes={"Asia/Kolkata": 330, "Pacific/Honolulu": -600}.get(zone, 0))
    text = shown.replace(tzinfo=None).isoformat(timespec="milliseconds")
    others = [each for each in headers if each[0] != "delayd-due"]
    return [*others, ("delayd-due", text.encode()), ("delayd-zone", zone.encode())]


def _drawn(chance: Random, value: bytes) -> Headers:
    """Return the wishes of one message; those that are compared follow from its value."""
    wishes: Headers = []
    if chance.random() < 0.15:
        wishes.append(("delayd-receipt", b"yes"))
    number = crc32(value)
    if number % 4 == 0:
        wishes.append(("delayd-late", LATE[number // 4 % len(LATE)]))
    if number % 5 == 0:
        wishes.append(("delayd-window", WINDOWS[number // 5 % len(WINDOWS)]))
    return wishes
