"""Headless Chromium over its debugging pipe: NUL-separated JSON on two file descriptors, without a
library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.harness.patience import PATIENCE_S, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
    "--autoplay-policy=no-user-gesture-required",
)


class PageError(Exception):
    """A script or a command failed in the browser."""


class Browser:
    """A browser process; `page` opens tabs of it."""

    def __init__(self, folder: Path, log: Path, flags: Sequence[str]) -> None:
        assert CHROMIUM is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def connect() -> None:
            # Chromium reads commands from descriptor 3 and answers on 4.
            a, b = os.dup(read_commands), os.dup(write_answers)
            os.dup2(a, 3)
            os.dup2(b, 4)

        with log.open("wb") as out:
            command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"]
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, close_fds=False, preexec_fn=connect
            )
        os.close(read_commands)
        os.close(write_answers)
        self._number = 0
        self.logged: list[dict[str, Any]] = []
        """Console lines of pages, and uncaught exceptions."""
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Run a command and return its result. Raises PageError."""
        self._number += 1
        reply = self._replies[self._number] = queue.SimpleQueue()
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = reply.get(timeout=PATIENCE_S)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def page(self, url: str, *, width: int = 1280, height: int = 800) -> Page:
        """Open a tab; its size is in CSS pixels."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        page.resize(width, height)
        page.send("Log.enable")
        page.send("Runtime.enable")
        page.send("Page.navigate", url=url)
        page.until("document.readyState === 'complete'")
        return page

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(Exception):
            self.send("Browser.close")
        with contextlib.suppress(OSError):
            os.close(self._commands)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._answers, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for raw in messages:
                message = json.loads(raw)
                if (reply := self._replies.pop(message.get("id"), None)) is not None:
                    reply.put(message)
                elif message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                    self.logged.append(message)
        os.close(self._answers)


class Page:
    """A tab of the browser."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command in the tab."""
        return self._browser.send(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """Value of an expression; a promise is awaited. Raises PageError."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def problems(self) -> list[dict[str, Any]]:
        """Errors in the tab's console: refused styles, missing files, exceptions."""
        own = [one["params"] for one in self._browser.logged if one["sessionId"] == self._session]
        return [one for one in own if one.get("entry", {}).get("level") in (None, "error")]

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def until(self, condition: str) -> None:
        """Poll until an expression is true."""

        def is_true() -> bool:
            try:
                return bool(self.run(f"Boolean({condition})"))
            except PageError:  # the page is loading
                return False

        until(is_true, lambda: f"{condition} did not come true: {self.run('document.body.innerText')}")

    def type(self, selector: str, text: str) -> None:
        """Type into a field, as with a keyboard."""
        self.run(f"document.querySelector({selector!r}).focus()")
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" else "")

    def point(self, selector: str) -> None:
        """Move the pointer to the middle of an element."""
        self._pointer = self.run(
            f"(() => {{ const e = document.querySelector({selector!r});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self._mouse("mouseMoved")

    def click(self, selector: str = "") -> None:
        """Click an element; without a selector, the element under the pointer."""
        if selector:
            self.point(selector)
        self._mouse("mousePressed", button="left", clickCount=1)
        self._mouse("mouseReleased", button="left", clickCount=1)

    def _mouse(self, kind: str, **more: Any) -> None:
        x, y = self._pointer
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the visible part of the page."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)


@contextlib.contextmanager
def chromium(folder: Path, *flags: str) -> Iterator[Browser]:
    """Start Chromium with a fresh profile and end all of its processes."""
    browser = Browser(folder / "profile", folder / "chromium.log", flags)
    try:
        yield browser
    finally:
        browser.close()
