"""Opening a node's disk: its wheel, the buffer and the newest frontier must fit together."""

from contextlib import closing, suppress
from pathlib import Path

from delayd.bus import Bus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.config.cluster_key import proof_key
from delayd.config.node import NodeConfig
from delayd.errors import BufferTrimmedError, CorruptionError, DiskError, LogNotEnoughError
from delayd.node.export.exporter import Exporter
from delayd.node.repairing.log_proof import log_lack_of
from delayd.node.repairing.starting import prepare_repair
from delayd.node.repairing.turn import Turn
from delayd.node.replica.replica import Replica
from delayd.node.snapshots.fetching import ready_directory
from delayd.node.snapshots.leftovers import Leftovers
from delayd.node.startup_checks import (
    check_disk_limit,
    check_old_keys,
    check_positions,
    newest_of,
)
from delayd.node.surroundings import Surroundings
from delayd.node.trimmed_start import begin_at, provable_beginnings, starts_beyond
from delayd.wheel.aside import may_give_back, want_back
from delayd.wheel.draft import note_damage
from delayd.wheel.layout import Layout
from delayd.wheel.recovery import remove_scratch
from delayd.wheel.storage import Wheel
from replication.settings import Settings


def open_disk(
    config: NodeConfig,
    surroundings: Surroundings,
    bus: Bus,
    seen: SeenFrontier,
    timeout_ms: int,
) -> tuple[Replica, Exporter]:
    """Open the wheel and check that it, the buffer and the newest frontier fit together.

    Raises DiskError, CorruptionError, BufferPositionError and what the checks raise, and
    CopyIsFasterError if another node's wheel is the better start.
    """
    clock, threads, settings = surroundings.clock, surroundings.threads, seen.record.settings
    key = config.cluster_key.get_secret_value()
    reserve = surroundings.open_reserve(config.data_dir, config.disk_free_min_bytes)
    reserve.release_if_low()
    log_lack = log_lack_of(bus, key, clock, timeout_ms)
    repair = prepare_repair(
        config.data_dir,
        Turn(surroundings.coordination, config.node),
        lambda: log_lack(seen),
        config.disk_free_min_bytes,
        lambda: _check_known(config, surroundings, bus, seen, timeout_ms),
    )
    ready_directory(config.data_dir)
    wheel = surroundings.open_wheel(config.data_dir, settings.partitions)
    try:
        check_disk_limit(config)
        replica = _replica_of(wheel, config, settings, surroundings)
        if starts := starts_beyond(bus, replica, timeout_ms):
            begins = provable_beginnings(bus, settings, starts, seen, clock, timeout_ms)
            if wheel.progress is not None:
                # A frontier topic that has lost steps which this wheel knows stops the node.
                replica.observe(newest_of(bus, replica, seen, timeout_ms, clock, threads))
                wheel.discard()  # All that it holds is done: that was proved just now.
                wheel = surroundings.open_wheel(config.data_dir, settings.partitions)
                replica = _replica_of(wheel, config, settings, surroundings)
            begin_at(replica, begins, seen)
        replica.look_after_room = reserve.tend
        check_positions(bus, replica, timeout_ms)
        check_old_keys(bus, replica, key, clock, timeout_ms)
        replica.observe(newest_of(bus, replica, seen, timeout_ms, clock, threads))
        if surroundings.fetcher is not None and not (repair and repair.is_under_way):
            # Of a wheel that is being repaired the log has the last word.
            surroundings.fetcher.weigh(bus, replica)
        remove_scratch(Layout(str(config.data_dir)))
        leftovers = Leftovers(config.data_dir)
        leftovers.tidy()
        replica.room_makers.append(leftovers.give_way)
        folder = config.data_dir / "exports"
        return replica, Exporter(replica, clock, folder=folder, node=config.node)
    except BaseException:
        wheel.close()
        raise


def note_end_of_wheel(
    directory: Path, error: CorruptionError | BufferTrimmedError, *, may_fetch: bool
) -> None:
    """Leave word for the next start that the wheel in a data directory is of no use, so that it
    does not meet the same error again: it puts the wheel back that a repair was to replace, or
    copies another node's wheel."""
    if may_give_back(directory):
        with suppress(DiskError):  # then it meets it again
            want_back(directory, error.message)
    elif may_fetch and isinstance(error, CorruptionError | LogNotEnoughError):
        note_damage(directory, str(error))


def _check_known(
    config: NodeConfig,
    surroundings: Surroundings,
    bus: Bus,
    seen: SeenFrontier,
    timeout_ms: int,
) -> None:
    """Raise what this wheel would stop the node by: a buffer or a frontier topic that has lost what
    it knows. CorruptionError, DiskError."""
    clock, threads, settings = surroundings.clock, surroundings.threads, seen.record.settings
    with closing(surroundings.open_wheel(config.data_dir, settings.partitions)) as wheel:
        replica = _replica_of(wheel, config, settings, surroundings)
        if not starts_beyond(bus, replica, timeout_ms):
            check_positions(bus, replica, timeout_ms)
        replica.observe(newest_of(bus, replica, seen, timeout_ms, clock, threads))


def _replica_of(
    wheel: Wheel, config: NodeConfig, settings: Settings, surroundings: Surroundings
) -> Replica:
    return Replica(
        wheel,
        settings,
        proof_key=proof_key(config.cluster_key.get_secret_value()),
        export_hold_ms=int(config.export_hold_s * 1000),
        disk_free_min_bytes=config.disk_free_min_bytes,
        threads=surroundings.threads,
    )
