"""A headless Chromium under our own hands: the DevTools protocol over two pipes.

Not here: where Chromium comes from (chromium.py); what a page has to look like.

Source: the protocol's domains Browser, Target, Page, Runtime, Network, Emulation and Log; messages
are JSON, each ended by a zero byte, on descriptors 3 (to the browser) and 4 (from it).
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from chromium import Chromium

ANSWER_TIMEOUT_S: Final = 20.0
EXIT_TIMEOUT_S: Final = 10.0

FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # without it, it does not run as root
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--hide-scrollbars",
)
LAUNCH: Final = """
import os, sys
os.dup2({0}, 3)
os.dup2({1}, 4)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Browser:
    """One process; `page` opens pages in it."""

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, from_: int) -> None:
        self._process = process
        self._to = to
        self._from = from_
        self._received = b""
        self._calls = 0
        self.name = ""
        """Its program and its version."""
        self.events: list[dict[str, Any]] = []
        """Everything that was said without being asked."""

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; AssertionError if it is an error or does not come."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, event: str, session: str) -> None:
        """Until an event has come, before or after this."""

        def is_it(said: dict[str, Any]) -> bool:
            return said.get("method") == event and said.get("sessionId") == session

        while not any(map(is_it, self.events)):
            self.events.append(self._receive(event))

    def page(self) -> "Page":
        """A new empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, target, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def _receive(self, waiting_for: str) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._from], [], [], max(left, 0))
            assert ready, f"Chromium says nothing for {ANSWER_TIMEOUT_S:.0f} s: {waiting_for}"
            part = os.read(self._from, 1 << 20)
            assert part, f"Chromium is gone: {waiting_for}"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


class Page:
    """One page, with what it did."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask about this page."""
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        """It is gone, with what it said."""
        self._browser.call("Target.closeTarget", targetId=self._target)
        self._forget()

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of what this page said without being asked."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in methods
        ]

    def show(self, file: Path, *, width: int, scheme: str = "light", height: int = 900) -> None:
        """Open a file, and wait until it is there."""
        self.open(file.as_uri(), width=width, scheme=scheme, height=height)

    def open(self, url: str, *, width: int, scheme: str = "light", height: int = 900) -> None:
        """Open an address, and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", **_metrics(width, height))
        self.media(scheme=scheme)
        self._forget()
        self.call("Page.navigate", url=url)
        self._browser.wait_for("Page.loadEventFired", self._session)

    def media(self, *, scheme: str, medium: str = "screen") -> None:
        """`light` or `dark`; `screen` or `print`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key goes down and up: its name, its number, and what it types."""
        said = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **said)
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def type(self, text: str) -> None:
        """Text goes to where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, width: int, height: int) -> bytes:
        """A PNG of the page's top left."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def _forget(self) -> None:
        said = self._browser.events
        said[:] = [event for event in said if event.get("sessionId") != self._session]


def _metrics(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}


@contextlib.contextmanager
def running(chromium: Chromium, home: Path) -> Iterator[Browser]:
    """Start it with an empty `home`, and leave no process of it behind."""
    ours = [_above_4(end) for end in os.pipe()]
    theirs = [_above_4(end) for end in os.pipe()]
    command = [
        *(sys.executable, "-c", LAUNCH.format(ours[0], theirs[1])),
        *(str(chromium.program), *FLAGS, f"--user-data-dir={home / 'profile'}"),
    ]
    with (home / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=(ours[0], theirs[1]),
            env={**os.environ, **chromium.environment, "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(ours[0])
    os.close(theirs[1])
    browser = Browser(process, ours[1], theirs[0])
    try:
        product = browser.call("Browser.getVersion")["product"]
        browser.name = f"{chromium.program} ({product})"
        yield browser
    except BaseException:
        print((home / "chromium.log").read_text(errors="replace")[-3000:])
        raise
    finally:
        with contextlib.suppress(AssertionError, OSError):
            browser.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours[1])
        os.close(theirs[0])


def _above_4(descriptor: int) -> int:
    """The same pipe at a number that the browser's own cannot take."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
