"""The demo's display on stderr: it collects what happens, and shows it meanwhile.

On a terminal one picture that changes; elsewhere plain lines. Not here: the story (demo.py), the
drawing of the picture (drawing.py).

Invariant: showing never stops the story; what cannot be seen at the moment is shown as it was.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import Final

from rich.console import Console
from rich.live import Live

from delayd.dev.drawing import EVENTS_SHOWN, Scene, draw, line
from delayd.dev.nodes import ask_node, master_among
from delayd.dev.verdict import Progress
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

LOOK_INTERVAL_MS: Final = 250
PLAIN_INTERVAL_MS: Final = 5_000
PICTURES_PER_SECOND: Final = 4


class Display:
    """What has happened so far. The story reports it; a thread of its own asks the nodes."""

    def __init__(self, console: Console) -> None:
        self.scene = Scene()
        self.masters: tuple[str, ...] = ()
        """All nodes that were seen delivering, in the order in which they began."""
        self._console = console
        self._clock = SystemClock()
        self._begun_ms = self._clock.monotonic_ms()
        self._lock = Lock()
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
            self.scene.events = (*self.scene.events, told)[-EVENTS_SHOWN:]
        if self._live is None:
            self._console.print(told, highlight=False, markup=False, soft_wrap=True)

    def paid(self, count: int) -> None:
        """Show that so many payments are sent."""
        self.scene.paid = count

    def master(self) -> str | None:
        """Return the node that delivers, as the nodes say."""
        return master_among(self.scene.nodes)

    @contextmanager
    def watching(
        self, admins: Mapping[str, str], snapshot: Callable[[], Progress]
    ) -> Iterator[None]:
        """Keep the display alive inside. `admins`: the nodes' URLs by name."""
        done = Event()
        look = Thread(target=self._look, args=(admins, snapshot, done), name="look", daemon=True)
        look.start()
        try:
            if self._console.is_terminal:
                with Live(
                    get_renderable=lambda: draw(self.scene),
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
        delivered = [0]
        """At the end of each second; of the running one, so far."""
        while not done.wait(LOOK_INTERVAL_MS / 1000):
            nodes = {name: ask_node(admin) for name, admin in admins.items()}
            master = master_among(nodes)
            if master is not None and self.masters[-1:] != (master,):
                self.masters = (*self.masters, master)
            self.scene.nodes = nodes  # only now: whoever sees a master finds it among the masters
            try:
                self.scene.progress = snapshot()
            except DelaydError:
                return  # the story meets the same error, and it is the one to tell of it
            now_ms = self._clock.monotonic_ms()
            seconds = (now_ms - begun_ms) // 1000
            delivered += [delivered[-1]] * (seconds + 2 - len(delivered))
            delivered[-1] = self.scene.progress.counts.delivered
            # The running second would look like a gap.
            self.scene.rates = tuple(after - before for before, after in pairwise(delivered[:-1]))
            if not self._console.is_terminal and now_ms - lined_ms >= PLAIN_INTERVAL_MS:
                lined_ms = now_ms
                self.tell(line(self.scene))
