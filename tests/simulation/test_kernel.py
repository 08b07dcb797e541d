"""The scheduler of the simulation: one seed decides, locks exclude, the dead are silent."""

import asyncio
import signal
from collections.abc import Callable
from random import Random

import pytest
from kernel import SECOND_US, Kernel, Killed, MachineClock, SimulatedLoop, SimulatedThreads


def interleaving(seed: int) -> list[str]:
    """Three tasks that take turns."""
    kernel, said = Kernel(Random(seed)), list[str]()
    process = kernel.process("p")

    def speak(name: str) -> Callable[[], None]:
        def run() -> None:
            for turn in range(5):
                said.append(f"{name}{turn} at {kernel.now_us}")
                kernel.sleep(turn % 2)

        return run

    for name in "abc":
        process.spawn(name, speak(name))
    kernel.run(SECOND_US)
    return said


def test_a_seed_decides_who_goes_on() -> None:
    assert interleaving(7) == interleaving(7)
    assert len({tuple(interleaving(seed)) for seed in range(20)}) > 10


def test_time_passes_only_when_all_sleep() -> None:
    kernel = Kernel(Random(1))
    clock = MachineClock(kernel, skew_ms=300, drift_ppm=100, up_us=5 * SECOND_US)
    seen: list[tuple[int, int]] = []
    wall_ms = clock.wall_ms()

    def run() -> None:
        for _ in range(2):
            seen.append((clock.monotonic_ms(), clock.wall_ms() - wall_ms))
            kernel.sleep(10_000 * SECOND_US)

    kernel.process("p").spawn("t", run)
    kernel.run(30_000 * SECOND_US)
    assert seen == [(5_000, 0), (10_006_000, 10_001_000)]


def test_a_lock_excludes_tasks_and_not_its_owner() -> None:
    kernel = Kernel(Random(3))
    process = kernel.process("p")
    condition = SimulatedThreads(process, lambda: kernel.sleep(1)).condition()
    inside: list[str] = []
    most = 0

    def run(name: str) -> None:
        nonlocal most
        for _ in range(20):
            with condition, condition:
                inside.append(name)
                most = max(most, len(inside))
                kernel.sleep(3)
                inside.remove(name)

    for name in "abc":
        process.spawn(name, lambda name=name: run(name))  # type: ignore[misc]
    kernel.run(SECOND_US)
    assert most == 1 and not process.tasks, "all came to an end, one at a time"


def test_waiting_gives_up_the_lock_and_ends_by_the_bell_or_by_time() -> None:
    kernel = Kernel(Random(3))
    process = kernel.process("p")
    condition = SimulatedThreads(process).condition()
    said: list[object] = []

    def wait() -> None:
        with condition, condition:
            said.append(condition.wait(1))
            said.append(condition.wait(1))
            said.append(condition.wait_for(lambda: "found" in said and "seen", 1))

    def ring() -> None:
        kernel.sleep(500_000)
        with condition:
            condition.notify_all()
        kernel.sleep(SECOND_US + 1_000)
        said.append("found")
        with condition:
            condition.notify_all()

    process.spawn("wait", wait)
    process.spawn("ring", ring)
    kernel.run(10 * SECOND_US)
    assert said == [True, False, "found", "seen"]


@pytest.mark.parametrize("itself", [False, True])
def test_the_dead_say_nothing_more(itself: bool) -> None:
    kernel = Kernel(Random(5))
    process, other = kernel.process("p"), kernel.process("q")
    condition = SimulatedThreads(process).condition()
    said: list[str] = []

    def live() -> None:
        with condition:
            try:
                while True:
                    kernel.sleep(1_000)
            except BaseException:
                kernel.sleep(0)  # As a call of a port.
                said.append("from beyond")
            finally:
                said.append("unwound")
                process.spawn("another", live)
                said.append("from beyond")

    def wait_for_the_lock() -> None:
        kernel.sleep(1)
        with condition:
            said.append("from beyond")

    def murder() -> None:
        kernel.sleep(SECOND_US)
        kernel.kill(process)
        kernel.sleep(1)
        said.append("alone")

    process.at_death.append(lambda: said.append("buried"))
    process.spawn("live", live)
    process.spawn("wait", wait_for_the_lock)
    (process if itself else other).spawn("murder", murder)
    kernel.run(2 * SECOND_US)
    assert said == ["unwound", "buried"] + (["alone"] if not itself else [])
    with pytest.raises(Killed):
        process.spawn("another", live)


def test_a_pause_stops_all_tasks_and_no_clock() -> None:
    kernel = Kernel(Random(5))
    process, other = kernel.process("p"), kernel.process("q")
    clock = MachineClock(kernel)
    seen: list[int] = []

    def tick() -> None:
        while True:
            seen.append(clock.monotonic_ms())
            kernel.sleep(100_000)

    def stop() -> None:
        kernel.sleep(250_000)
        kernel.pause(process, 2 * SECOND_US)

    process.spawn("tick", tick)
    other.spawn("stop", stop)
    kernel.run(2_400_000)
    assert seen == [0, 100, 200, 2250, 2350]


def test_an_event_loop_sleeps_calls_and_hears_in_virtual_time() -> None:
    kernel = Kernel(Random(5))
    process = kernel.process("p")
    said: list[object] = []

    def work(number: int) -> int:
        kernel.sleep(SECOND_US)
        return number + 1

    async def main() -> str:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        said.append(await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(3))))
        said.append(kernel.now_us)
        await asyncio.sleep(0.5)
        said.append(kernel.now_us)
        left_over = asyncio.create_task(asyncio.sleep(100))
        await ended.wait()
        assert not left_over.done()
        return "ended"

    loop = SimulatedLoop(process)
    process.spawn("main", lambda: said.append(loop.run_main(main())))
    kernel.run(2 * SECOND_US)
    loop.deliver(signal.SIGTERM)
    kernel.run(3 * SECOND_US)
    assert said == [[1, 2, 3], SECOND_US, 1_500_000, "ended"]
    assert not process.tasks


def test_two_event_loops_share_the_thread() -> None:
    kernel = Kernel(Random(5))
    running: list[bool] = []

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(10):
            await asyncio.to_thread(kernel.sleep, 1_000)
            kernel.sleep(1_500)  # The turn is lost in the middle of a coroutine.
            running.append(asyncio.get_running_loop() is loop)

    for name in "ab":
        process = kernel.process(name)
        loop = SimulatedLoop(process)
        process.spawn("main", lambda loop=loop: loop.run_main(main(loop)))  # type: ignore[misc]
    kernel.run(SECOND_US)
    assert running == [True] * 20


def test_a_killed_loop_leaves_nothing_that_complains() -> None:
    kernel = Kernel(Random(5))
    process = kernel.process("p")
    said: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.to_thread(kernel.sleep, 100 * SECOND_US)
        finally:
            said.append("closed")

    async def main() -> None:
        waiting = asyncio.create_task(wait())
        try:
            await asyncio.sleep(100)
        finally:
            waiting.cancel()

    loop = SimulatedLoop(process)
    process.spawn("main", lambda: loop.run_main(main()))
    kernel.run(SECOND_US)
    kernel.kill(process)
    assert said == ["closed"] and loop.is_closed()
