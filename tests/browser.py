"""A real browser without a window, driven by the DevTools protocol through a pipe."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
LIMIT_S = 60.0
# The browser reads the protocol from descriptor 3 and answers on 4.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """`$TURNOUT_BROWSER`, or a Chromium or Chrome on PATH."""
    named = os.environ.get("TURNOUT_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab: what it says, what it asks for, and what it looks like."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file, and wait until it was drawn."""
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._browser.heard.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        self._browser.wait_for("Page.loadEventFired")
        # Charts are drawn in frames to come.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def close(self) -> None:
        self.send("Page.close")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since the page was opened."""
        found = []
        for event in self._browser.heard:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(json.dumps(params["entry"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(params["args"]))
        return found

    def dialogs(self) -> list[str]:
        """What the page asked in boxes, which were closed at once."""
        return [
            event["params"]["message"]
            for event in self._browser.heard
            if event["method"] == "Page.javascriptDialogOpening"
        ]

    def requested(self) -> list[str]:
        """What was asked for, beside what the page itself holds."""
        return [
            url
            for event in self._browser.heard
            if event["method"] == "Network.requestWillBeSent"
            and not (url := event["params"]["request"]["url"]).startswith(("data:", "blob:"))
        ]

    def screenshot(self, to: Path) -> None:
        """The whole page, as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """A running browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._ids = itertools.count(1)
        self._rest = b""
        self.heard: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = self._write(method, session, params)
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _write(self, method: str, session: str | None, params: dict[str, Any]) -> int:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return number

    def wait_for(self, method: str) -> None:
        while all(event["method"] != method for event in self.heard):
            self._receive()

    def page(self) -> Page:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, attached["sessionId"])

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(until - time.monotonic(), 0))
            part = os.read(self._back, 1 << 20) if ready else b""
            assert part, "the browser ended, or did not answer in time"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        received: dict[str, Any] = json.loads(message)
        if "method" in received:
            self.heard.append(received)
        if received.get("method") == "Page.javascriptDialogOpening":
            # A page waits for its box, and answers nothing meanwhile.
            self._write("Page.handleJavaScriptDialog", received["sessionId"], {"accept": True})
        return received


@contextlib.contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = (*FLAGS, f"--user-data-dir={profile}", "about:blank")
        child = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_read), str(back_write), program, *arguments],
            pass_fds=(to_read, back_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(back_write)
        started = Browser(to_write, back_read)
        try:
            yield started
        finally:
            with contextlib.suppress(OSError, AssertionError):
                started.send("Browser.close")
            os.close(to_write)
            os.close(back_read)
            try:
                child.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
