"""A headless Chromium driven through its DevTools pipe: real keys, what loads, what is read out."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .browser import CHROMIUM

_HUNG_S = 120
_KEYS = {
    "Tab": ("Tab", 9, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "Enter": ("Enter", 13, "\r"),
    "Space": ("Space", 32, " "),
}


class Tab:
    """One page. ``events`` holds everything the browser reported so far, in order."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._number = 0
        self._session: str | None = None
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._writing, json.dumps(asked).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                answer: dict[str, Any] = found["result"]
                return answer
            self.events.append(found)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], _HUNG_S)
            assert ready, "Chromium hangs"
            part = os.read(self._reading, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Load a page in a window of that width and wait for its load event."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def wait(self, method: str) -> None:
        """Read on until the browser reports an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def eval(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key as a hand would."""
        code, number, text = _KEYS[key]
        name = " " if key == "Space" else key
        down = {"code": code, "key": name, "windowsVirtualKeyCode": number}
        for _ in range(times):
            kind = "keyDown" if text else "rawKeyDown"
            self.call(
                "Input.dispatchKeyEvent", type=kind, **down, **({"text": text} if text else {})
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", **down)

    def tree(self) -> list[tuple[str, str]]:
        """What a screen reader is told: roles and names."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node["role"].get("value")), str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node["ignored"]
        ]

    def loaded(self) -> list[str]:
        """Addresses of everything that was asked for since ``open``."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in asked]

    def complaints(self) -> list[str]:
        """Errors that the page raised or the browser logged since ``open``."""
        bad = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(e["params"])[:300] for e in self.events if e.get("method") in bad]


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A browser with one tab, its profile below ``folder``, that resolves no host name."""
    assert CHROMIUM is not None
    ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (*os.pipe(), *os.pipe())]
    to_browser, writing, reading, from_browser = ends
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}", "about:blank",
    ]  # fmt: skip

    def connect() -> None:
        os.dup2(to_browser, 3)
        os.dup2(from_browser, 4)

    process = subprocess.Popen(
        command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Tab(reading, writing)
    finally:
        process.kill()
        process.wait()
        os.close(writing)
        os.close(reading)
