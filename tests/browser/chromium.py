"""A real browser, driven over its own debugging socket (the Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from conformance.driver import until

PATIENCE = 30.0


class Tab:
    """One page of a browser. What its console complained about is in `complaints`."""

    def __init__(self, connection: ClientConnection, end: Callable[[], object]) -> None:
        self._connection = connection
        self._end = end
        self._number = 0
        self.complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        end = time.monotonic() + PATIENCE
        while True:
            message = json.loads(self._connection.recv(timeout=max(0.0, end - time.monotonic())))
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.complaints.append(str(details.get("exception", details).get("description", details)))
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error" | "warning", "text": str(text)}}}:
                self.complaints.append(text)

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page, and return its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str, what: str = "") -> None:
        """Wait until an expression is true."""
        until(lambda: self.run(f"Boolean({script})"), what or script, PATIENCE)

    def text(self, selector: str) -> str:
        """Return what an element says, as it is seen."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str, *, repeated: bool = False) -> None:
        """Press a key, as a keyboard does."""
        char = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, ord(key[0].upper()))
        how = {"key": key, "windowsVirtualKeyCode": code, "autoRepeat": repeated}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=char, **how)
        self.call("Input.dispatchKeyEvent", type="keyUp", **how)

    def type(self, text: str) -> None:
        """Press the keys of a text."""
        for key in text:
            self.press(key)

    def click(self, selector: str) -> None:
        """Click into the middle of an element, with the mouse."""
        name = json.dumps(selector)
        self.run(f"document.querySelector({name}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"document.querySelector({name}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Write a picture of the whole page."""
        self.media("prefers-color-scheme", "dark" if dark else "light")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Close it: the browser does, since a page that has just gone elsewhere may not answer."""
        self._end()
        self._connection.close()

    def media(self, name: str, value: str) -> None:
        """Have the page believe that its reader prefers something."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value}])


class Browser:
    """A browser that runs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = contextlib.ExitStack()

    def open(self, url: str) -> Tab:
        """Open a page in a tab of its own."""
        made = json.loads(self._ask("new?about:blank", "PUT"))
        connection = connect(made["webSocketDebuggerUrl"], max_size=None, compression=None, ping_interval=None, max_queue=None)
        tab = Tab(self._stack.enter_context(connection), lambda: self._ask(f"close/{made['id']}"))
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Page.navigate", url=url)
        tab.until("location.href !== 'about:blank' && document.readyState === 'complete'", f"the page {url}")
        return tab

    def _ask(self, what: str, method: str = "GET") -> bytes:
        asked = urllib.request.Request(f"http://127.0.0.1:{self._port}/json/{what}", method=method)
        with urllib.request.urlopen(asked, timeout=PATIENCE) as said:
            content: bytes = said.read()
            return content

    def close(self) -> None:
        """Leave its tabs."""
        self._stack.close()


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it with the block."""
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    words += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={folder}/chromium", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        port = until(_read(folder / "chromium/DevToolsActivePort"), "the browser", PATIENCE)
        made = Browser(int(port))
        try:
            yield made
        finally:
            made.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _read(path: Path) -> Callable[[], str]:
    """Return a look at the first line of a file that may not be there yet."""
    return lambda: path.read_text().partition("\n")[0] if path.exists() else ""
