"""`delayd bench hot-second`: very many messages due within one second, on three nodes.

Meanwhile a few messages a second go to a target of another lane: they should stay on time. Then the
bare driver writes the same messages at their due times, as fast as it can, to the same reader.
"""

from threading import Event
from typing import Final

from delayd.bench.bare import Bare
from delayd.bench.context import Context
from delayd.bench.errors import TooSlowError
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import Load, shuffled
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.process_costs import MemoryPeak, tree_cpu_s, tree_memory
from delayd.bench.reading import reading, received
from delayd.bench.receipts import Receipts
from delayd.bench.sending import fill, lead_ms
from replication.rank import SLOT_MS, lane_of
from replication.settings import LANES

NODES: Final = 3
BESIDE_RATE: Final = 100
BESIDE_MS: Final = 10_000
"""How long the other lane has messages, from two seconds before the hot second on."""

BESIDE_LEAD_MS: Final = 2_000
BARE_LEAD_MS: Final = 6_000
SAMPLE_S: Final = 0.1
WARM_UP_RATE: Final = 5_000
WARM_UP_MS: Final = 4_000
LATE_MS_MAX: Final = 120_000
"""A message that is later is lost."""

AGAINST: Final = "bare transactions at due times"
AGAINST_CPU: Final = "bare transactions, without a read"


def bench_hot_second(context: Context) -> list[Figure]:
    """Return lateness of such a second and of other messages meanwhile, memory and processor
    time."""
    measured = Measured()
    for _ in context.runs("hot-second"):
        context.patiently(lambda patience: _play(context, measured, patience))
    return measured.figures()


def _play(context: Context, measured: Measured, patience: int) -> None:
    with running(context.brokers, NODES) as nodes:
        kafka, count = context.brokers.client, context.sizes.messages
        at_ms = _second_after(nodes.clock.wall_ms() + patience * lead_ms(NODES * count))
        hot = shuffled(nodes.create_target(), count, at_ms, SLOT_MS)
        beside = Load(
            _other_lane(nodes, hot.target),
            BESIDE_RATE * BESIDE_MS // 1000,
            at_ms - BESIDE_LEAD_MS,
            BESIDE_MS,
        )
        master, term = nodes.master() or nodes.names[0], nodes.term()
        pid = nodes.pid(master)
        rest_bytes = tree_memory(pid).anon
        begun_s = cpu_s_of(nodes)
        with reading(kafka, hot) as of_hot, reading(kafka, beside) as of_beside:
            fill(kafka, nodes.buffer, hot, beside)
            nodes.wait_until_ingested(hot.count + beside.count)
            ingested_s = cpu_s_of(nodes)
            if nodes.clock.wall_ms() >= beside.first_due_ms:
                raise TooSlowError
            Event().wait((at_ms - nodes.clock.wall_ms()) / 1000)
            due_s = cpu_s_of(nodes)
            with MemoryPeak(lambda: tree_memory(pid).anon, SAMPLE_S) as memory:
                found = received(of_hot, at_ms + LATE_MS_MAX)
                delivered_s = cpu_s_of(nodes)
                of_others = received(of_beside, beside.end_ms + LATE_MS_MAX)
        used_s = {
            name: ingested_s[name] - begun_s[name] + delivered_s[name] - due_s[name]
            for name in nodes.names
        }
        again_ms = _second_after(nodes.clock.wall_ms() + BARE_LEAD_MS + count // 100)
        again = shuffled(nodes.create_target(), count, again_ms, SLOT_MS)
        bare, bare_cpu_ms = play_bare(context, again)
        p50, p99, last = found.quantiles_ms(500, 990, 1000)
        bare_p50, bare_p99, bare_last = bare.quantiles_ms(500, 990, 1000)
        measured.add("hot-second-p50", "ms late", p50, AGAINST, bare_p50)
        measured.add("hot-second-p99", "ms late", p99, AGAINST, bare_p99)
        measured.add("hot-second-last", "ms late", last, AGAINST, bare_last)
        [other_last] = of_others.quantiles_ms(1000)
        measured.add("hot-second-other-lane-last", "ms late", other_last, "hot-second-last", last)
        held_mib = memory.peak_bytes / 2**20
        measured.add("hot-second-memory", "MiB", held_mib, "at rest", rest_bytes / 2**20)
        measured.add("hot-second-takeovers", "takeovers", nodes.term() - term)
        add_cpu(measured, "hot-second", used_s, master, hot.count, bare_cpu_ms)
        measured.add_faults("hot-second", found.faults())
        measured.add_faults("hot-second-other-lane", of_others.faults())


def cpu_s_of(nodes: BenchNodes) -> dict[str, float]:
    """Return the processor time that each node has used so far."""
    return {name: tree_cpu_s(nodes.pid(name)) for name in nodes.names}


def add_cpu(
    measured: Measured,
    name: str,
    used_s: dict[str, float],
    master: str,
    count: int,
    bare_ms: float,
) -> None:
    """Add the processor time per 1,000 messages of the master, which ingested and delivered
    them, and of a follower, which ingested and dropped them (the mean, if there are several)."""
    per_thousand = {each: seconds * 10**6 / count for each, seconds in used_s.items()}
    followers = [used for each, used in per_thousand.items() if each != master]
    of_master = per_thousand[master]
    measured.add(f"{name}-master-cpu", "ms/1000 messages", of_master, AGAINST_CPU, bare_ms)
    mean = sum(followers) / len(followers)
    measured.add(f"{name}-follower-cpu", "ms/1000 messages", mean, "the master's", of_master)


def warm_up(context: Context) -> None:
    """Have the brokers do for some seconds the work that is measured later: brokers that have
    just started are slower."""
    with BenchNodes(context.brokers, 0) as topics:
        first_due_ms = topics.clock.wall_ms() + BARE_LEAD_MS // 2
        count = WARM_UP_RATE * WARM_UP_MS // 1000
        play_bare(context, Load(topics.create_target(), count, first_due_ms, WARM_UP_MS))


def play_bare(context: Context, load: Load) -> tuple[Receipts, float]:
    """Return what the same reader receives of a load that the bare driver writes at its due times,
    and the driver's processor time for 1,000 messages, in ms, writing only."""
    kafka = context.brokers.client
    with Bare(kafka).at_due_times(load) as writer, reading(kafka, load) as reader:
        used_s = float(writer.next())
        found = received(reader, load.end_ms + LATE_MS_MAX)
    return found, used_s * 10**6 / load.count


def _second_after(at_ms: int) -> int:
    return at_ms - at_ms % SLOT_MS + SLOT_MS


def _other_lane(nodes: BenchNodes, target: str) -> str:
    for number in range(LANES):
        name = nodes.target_named(f"beside-{number}")
        if lane_of(name, LANES) != lane_of(target, LANES):
            return nodes.create_target(name=f"beside-{number}")
    raise AssertionError("so many names are not all in one lane")
