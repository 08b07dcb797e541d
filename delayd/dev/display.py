"""The demo's display on stderr: it collects what happens, and shows it meanwhile.

On a terminal one picture that changes; elsewhere plain lines. Not here: the story (demo.py), the
drawing of the picture (drawing.py).

Invariant: showing never stops the story; what cannot be seen at the moment is shown as it was.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import Final

from rich.console import Console
from rich.live import Live

from delayd.dev.drawing import NodeLook, Scene, draw, line
from delayd.dev.nodes import ask_node
from delayd.dev.verdict import Progress
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

LOOK_INTERVAL_MS: Final = 250
PLAIN_INTERVAL_MS: Final = 5_000
PICTURES_PER_SECOND: Final = 4
EVENTS_KEPT: Final = 50


class Display:
    """What has happened so far. The story reports events; a thread of its own asks the nodes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = SystemClock()
        self._begun_ms = self._clock.monotonic_ms()
        self._lock = Lock()
        self._events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._nodes: tuple[NodeLook, ...] = ()
        self._masters: list[str] = []
        self._planned = self._payments = 0
        self._scheduled = self._paid = 0
        self._progress = Progress()
        self._delivered_by_second: list[int] = [0]
        self._live: Live | None = None
        self._doing = ""

    def doing(self, what: str) -> None:
        """Show that a task begins; a counter after a colon may change."""
        what = what.partition(":")[0]
        if what != self._doing:
            self._doing = what
            self.tell(what)

    def tell(self, event: str) -> None:
        """Show an event that people want to know of."""
        since_s = (self._clock.monotonic_ms() - self._begun_ms) / 1000
        told = f"{since_s:6.1f} s  {event}"
        with self._lock:
            self._events.append(told)
        if self._live is None:
            self._console.print(told, highlight=False, markup=False, soft_wrap=True)

    def scheduled(self, count: int) -> None:
        """Show that so many orders are scheduled."""
        self._scheduled = count

    def paid(self, count: int) -> None:
        """Show that so many payments are sent."""
        self._paid = count

    def master(self) -> str | None:
        """Return the node that delivers, as the nodes say."""
        with self._lock:
            return _master_of(self._nodes)

    def masters(self) -> tuple[str, ...]:
        """Return all nodes that were seen delivering, in the order in which they began."""
        with self._lock:
            return tuple(self._masters)

    @contextmanager
    def watching(
        self,
        admins: Mapping[str, str],
        planned: int,
        payments: int,
        snapshot: Callable[[], Progress],
    ) -> Iterator[None]:
        """Keep the display alive inside. `admins`: the nodes' URLs by name; `planned`: orders."""
        self._planned, self._payments = planned, payments
        done = Event()
        look = Thread(target=self._look, args=(admins, snapshot, done), name="look", daemon=True)
        look.start()
        try:
            if self._console.is_terminal:
                with Live(
                    get_renderable=lambda: draw(self._scene()),
                    console=self._console,
                    refresh_per_second=PICTURES_PER_SECOND,
                ) as self._live:
                    yield
            else:
                yield
        finally:
            self._live = None
            done.set()
            look.join()

    def _look(
        self, admins: Mapping[str, str], snapshot: Callable[[], Progress], done: Event
    ) -> None:
        begun_ms = lined_ms = self._clock.monotonic_ms()
        while not done.wait(LOOK_INTERVAL_MS / 1000):
            nodes = tuple(_look_at(name, admin) for name, admin in admins.items())
            now_ms = self._clock.monotonic_ms()
            with self._lock:
                self._nodes = nodes
                master = _master_of(nodes)
                if master is not None and self._masters[-1:] != [master]:
                    self._masters.append(master)
                try:
                    self._progress = snapshot()
                except DelaydError:
                    return  # the story meets the same error, and it is the one to tell of it
                self._note_rate((now_ms - begun_ms) // 1000)
            if not self._console.is_terminal and now_ms - lined_ms >= PLAIN_INTERVAL_MS:
                lined_ms = now_ms
                self.tell(line(self._scene()))

    def _note_rate(self, second: int) -> None:
        totals = self._delivered_by_second
        while len(totals) <= second + 1:
            totals.append(totals[-1])
        totals[-1] = self._progress.counts.delivered

    def _scene(self) -> Scene:
        with self._lock:
            totals = self._delivered_by_second[:-1]  # the running second would look like a gap
            return Scene(
                planned=self._planned,
                payments=self._payments,
                scheduled=self._scheduled,
                paid=self._paid,
                progress=self._progress,
                nodes=self._nodes,
                rates=tuple(after - before for before, after in pairwise(totals)),
                events=tuple(self._events),
            )


def _look_at(name: str, admin: str) -> NodeLook:
    answer = ask_node(admin)
    if answer is None:
        return NodeLook(name, "down", ready=False, term=0)
    role = "master" if answer.master and answer.delivering else "follower"
    return NodeLook(name, role, answer.ready, answer.term)


def _master_of(nodes: tuple[NodeLook, ...]) -> str | None:
    masters = [(node.term, node.name) for node in nodes if node.role == "master"]
    return max(masters)[1] if masters else None
