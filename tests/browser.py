"""A headless Chromium, driven through the pipes of its debugging protocol.

https://chromedevtools.github.io/devtools-protocol: messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WAIT_SECONDS = 60.0
# The protocol wants the descriptors 3 and 4, which may be in use here.
_RENUMBER = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the path of an installed Chromium: of the distribution, or of Playwright."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "~/.cache/ms-playwright")).expanduser()
    patterns = ("chromium_headless_shell-*/*/*headless*shell", "chromium-*/*/chrome")
    found = sorted(path for pattern in patterns for path in cache.glob(pattern))
    return str(found[-1]) if found else None


class Browser:
    """One page of a browser process.

    Attributes:
        messages: what pages reported to the console, and what they asked other hosts for.
        scripts_are_off: whether pages that are opened next run no scripts.
    """

    def __init__(self, path: str, profile: Path, *flags: str) -> None:
        child_reads, self._write = os.pipe()
        self._read, child_writes = os.pipe()
        command = [
            *(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "--force-color-profile=srgb",
            ),
            *("--disable-extensions", "--disable-background-networking", *flags, "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _RENUMBER, str(child_reads), str(child_writes), *command],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        self.messages: list[str] = []
        self.scripts_are_off = False
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self._tab: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self._receive(method, deadline)
            if answer.get("id") != self._number:
                self._note(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"the browser refused {method}: {answer['error']}")
            return dict(answer["result"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of the promise that it makes."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Return when the expression is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._is_true(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is not true; the console has {self.messages}")
            time.sleep(0.02)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except RuntimeError as error:
            if "navigated" not in str(error):  # the page is being loaded
                raise
            return False

    def open(self, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Open a file in a new tab in place of the last one, and wait until it is loaded."""
        self._session, last = None, self._tab
        self._tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        if last is not None:
            self.call("Target.closeTarget", targetId=last)
        attached = self.call("Target.attachToTarget", targetId=self._tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.emulate(scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=self.scripts_are_off)
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for(f"location.href.startsWith({page.as_uri()!r})")
        self.wait_for("document.readyState === 'complete'")

    def emulate(self, scheme: str, media: str = "") -> None:
        """Prefer a colour scheme, and show the page as on `media`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str, code: int = 0) -> None:
        """Press and release a key; `code` is its virtual key code, for keys without a character."""
        text = {"text": key} if len(key) == 1 else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Save what is visible, or the whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            os.close(self._write)
            os.close(self._read)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _receive(self, method: str, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"the browser did not answer {method} in {WAIT_SECONDS:.0f} s")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise ConnectionError(f"the browser ended before it answered {method}")
            self._pending += more
        message, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            words = [str(part.get("value", part.get("description"))) for part in parameters["args"]]
            self.messages.append(f"{parameters['type']}: {' '.join(words)}")
        elif event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.messages.append(str(details.get("exception", {}).get("description", details)))
        elif event.get("method") == "Log.entryAdded":
            entry = parameters["entry"]
            self.messages.append(f"{entry['level']}: {entry['text']}")
        elif event.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "about:", "blob:")):
                self.messages.append(f"the page asked for {url}")
