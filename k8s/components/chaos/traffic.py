"""Drives traffic through delayd and judges what came of it: `python traffic.py`.

    TRAFFIC_SECONDS      how long messages are sent (60)
    TRAFFIC_RATE         how many a second (500); every third is cancelled, before, around or after
                         its due time
    TRAFFIC_DELAY_S      the longest delay of a message (6)
    TRAFFIC_TOPIC        their target, made if it is not there (`traffic`)
    TRAFFIC_PATIENCE_S   how long after the last due time outcomes may take (120)

Kafka is where DELAYD_BOOTSTRAP says, by the keys of security in the file DELAYD_CONFIG. A line of
JSON every few seconds says how it goes; the last one is the report, with `verdict`. The exit code
is 0 if nothing is wrong, 1 if anything is, 3 if Kafka cannot be reached. SIGTERM ends the sending
early; what was sent is judged.

Not here: what is right (tally.py). It sends and reads with kafka-python, and knows of delayd only
headers and topics.
"""

import heapq
import json
import os
import random
import signal
import sys
import threading
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tally import Asked, Tally

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

PARTITIONS: Final = 4
DELAY_MIN_MS: Final = 1_500
DELAY_MAX_MS: Final = 6_000
AROUND_MS: Final = 50
PROGRESS_S: Final = 5
SETTLE_S: Final = 12
"""Longer than Kafka lets the transaction of a dead master hide what is behind it: a double too."""

CONNECT_TRIES: Final = 20
UNREACHABLE: Final = 3

OPTIONS: Final[Mapping[str, str]] = {
    "kafka_security_protocol": "security_protocol",
    "kafka_sasl_mechanism": "sasl_mechanism",
    "kafka_user": "sasl_plain_username",
    "kafka_password": "sasl_plain_password",
    "kafka_ca_file": "ssl_cafile",
    "kafka_cert_file": "ssl_certfile",
    "kafka_key_file": "ssl_keyfile",
    "kafka_key_password": "ssl_password",
}
"""A key of delayd's configuration, and kafka-python's name for it."""


class Send(NamedTuple):
    """What is to be sent when."""

    at_ms: int
    number: int
    is_cancel: bool
    due_ms: int


def plan(
    begin_ms: int,
    seconds: int,
    rate: int,
    chance: random.Random,
    delay_max_ms: int = DELAY_MAX_MS,
) -> Iterator[Send]:
    """All that a run sends, by time. A message is sent before its cancel."""
    waiting: list[Send] = []
    for number in range(seconds * rate):
        at_ms = begin_ms + number * 1_000 // rate
        due_ms = at_ms + chance.randrange(DELAY_MIN_MS, delay_max_ms)
        while waiting and waiting[0].at_ms < at_ms:
            yield heapq.heappop(waiting)
        yield Send(at_ms, number, False, due_ms)
        if number % 3 == 0:
            when = (
                chance.randrange(at_ms + 1, due_ms),
                due_ms + chance.randint(-AROUND_MS, AROUND_MS),
                due_ms + chance.randrange(1_000),
            )[chance.choice((0, 0, 1, 2))]
            heapq.heappush(waiting, Send(when, number, True, due_ms))
    while waiting:
        yield heapq.heappop(waiting)


def kafka_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """How kafka-python gets in."""
    file = environ.get("DELAYD_CONFIG")
    said = tomllib.loads(Path(file).read_text()) if file else {}
    for key in [key for key in said if key.endswith("_password_file")]:
        said[key.removesuffix("_file")] = Path(said[key]).read_text().strip()
    options = {theirs: said[ours] for ours, theirs in OPTIONS.items() if ours in said}
    return {"bootstrap_servers": environ["DELAYD_BOOTSTRAP"].split(","), **options}


class Run:
    """One run: a thread that reads, and `drive`, which sends."""

    def __init__(self, options: Mapping[str, Any], target: str, prefix: str) -> None:
        self.tally = Tally(run=f"{time.time_ns():x}")
        self._target, self._prefix = target, prefix
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.is_enough = False
        """Ends `drive` early. No Event: a signal that comes while one is waited for blocks both."""
        self.failure: KafkaError | None = None
        self._producer = KafkaProducer(**options, acks="all", enable_idempotence=True, linger_ms=2)
        self._consumer = KafkaConsumer(
            **options,
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=50,
        )
        places = [
            TopicPartition(topic, number)
            for topic in (target, f"{prefix}receipts")
            for number in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]
        self._consumer.assign(places)
        self._consumer.seek_to_end(*places)
        for place in places:
            self._consumer.position(place)  # now, not at the first poll
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def drive(self, seconds: int, rate: int, delay_max_ms: int = DELAY_MAX_MS) -> int:
        """Send everything in time; returns when the last one is due."""
        last_ms, chance = 0, random.Random(self.tally.run)
        for send in plan(now_ms() + 1_000, seconds, rate, chance, delay_max_ms):
            while (early_ms := send.at_ms - now_ms()) > 0 and not self.is_enough:
                time.sleep(min(early_ms, 100) / 1_000)
            if self.is_enough:
                break
            last_ms = max(last_ms, send.due_ms)
            self._send(send)
        self._producer.flush(timeout=60)
        return last_ms

    def progress(self) -> dict[str, Any]:
        """So far."""
        with self._lock:
            tally = self.tally
            newest = max((times[-1] for times in tally.deliveries.values()), default=None)
            return {
                "at_ms": now_ms(),
                "sent": len(tally.asked),
                "delivered": len(tally.deliveries),
                "answered": len(tally.verdicts),
                "since_last_ms": None if newest is None else now_ms() - newest,
            }

    def finish(self, patience_s: int) -> dict[str, Any]:
        """Wait for the outcomes, then for whatever must not come, and judge."""
        deadline, is_over = time.monotonic() + patience_s, False
        while time.monotonic() < deadline and not is_over:
            time.sleep(0.5)
            with self._lock:
                is_over = self.tally.is_over()
        time.sleep(SETTLE_S)
        self._ending.set()
        self._reader.join(timeout=30)
        self._producer.close(timeout=10)
        if self.failure is not None:
            raise self.failure
        return self.tally.report()

    def _send(self, send: Send) -> None:
        tally, id = self.tally, self.tally.id_of(send.number).encode()
        if send.is_cancel:
            value, asks = None, {"op": "cancel"}
        else:
            value = f"message {send.number} of {tally.run}".encode()
            asks = {"topic": self._target, "due": str(send.due_ms)}
            with self._lock:
                tally.asked[send.number] = Asked(send.due_ms, value, is_acknowledged=False)

        def acknowledged(_place: object) -> None:
            with self._lock:
                if value is None:
                    tally.cancelled.add(send.number)
                else:
                    tally.asked[send.number] = Asked(send.due_ms, value)

        headers = [(f"delayd-{name}", said.encode()) for name, said in asks.items()]
        headers.append(("delayd-id", id))
        topic = f"{self._prefix}buffer"
        future = self._producer.send(topic, key=id, value=value, headers=headers)
        future.add_callback(acknowledged)

    def _read(self) -> None:
        while not self._ending.is_set():
            try:
                polled = self._consumer.poll(timeout_ms=100)
            except KafkaError as error:
                self.failure = error
                return
            with self._lock:
                for place, records in polled.items():
                    for record in records:
                        if place.topic == self._target:
                            self.tally.take_delivery(record.key, record.value, record.timestamp)
                        else:
                            self.tally.take_receipt(record.value)
        self._consumer.close()


def make_topic(options: Mapping[str, Any], topic: str) -> None:
    """Create the target, stamped by the broker: only its append times show when a message came."""
    admin = KafkaAdminClient(**options)
    new = NewTopic(
        topic,
        num_partitions=PARTITIONS,
        replication_factor=-1,
        topic_configs={"message.timestamp.type": "LogAppendTime"},
    )
    try:
        admin.create_topics([new])
    except TopicAlreadyExistsError:
        pass
    finally:
        admin.close()


def now_ms() -> int:
    """Unix ms."""
    return time.time_ns() // 1_000_000


def main(environ: Mapping[str, str]) -> int:
    """Run the traffic. Return the exit code."""
    topic = environ.get("TRAFFIC_TOPIC", "traffic")
    options = kafka_options(environ)
    for attempt in range(CONNECT_TRIES):
        try:
            make_topic(options, topic)
            run = Run(options, topic, environ.get("DELAYD_PREFIX", "delayd-"))
            break
        except KafkaError as error:
            print(f"traffic: Kafka cannot be reached: {error}", file=sys.stderr, flush=True)
            if attempt == CONNECT_TRIES - 1:
                return UNREACHABLE
            time.sleep(1)

    def stop(_number: int, _frame: object) -> None:
        run.is_enough = True

    signal.signal(signal.SIGTERM, stop)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(PROGRESS_S):
            print(json.dumps(run.progress()), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    last_ms = run.drive(
        int(environ.get("TRAFFIC_SECONDS", "60")),
        int(environ.get("TRAFFIC_RATE", "500")),
        int(environ.get("TRAFFIC_DELAY_S", "6")) * 1_000,
    )
    time.sleep(max(0, last_ms - now_ms()) / 1_000)
    try:
        report = run.finish(int(environ.get("TRAFFIC_PATIENCE_S", "120")))
    except KafkaError as error:
        print(f"traffic: nothing is proven: {error}", file=sys.stderr)
        return UNREACHABLE
    ended.set()
    print(json.dumps(report), flush=True)
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(os.environ))
