"""A headless Chromium, spoken to over its debugging protocol, for tests of pages.

`chromium-headless-shell` of Debian, or another Chromium on the path. Where there is none, tests are skipped by name.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")

# A page of ours is drawn within a second; Chromium itself starts slowly beside other tests.
WAIT_S = 30.0
_LOOK_S = 0.01

_HURRY = "const later = setTimeout; window.setTimeout = (call, ms, ...rest) => later(call, ms / {hurry}, ...rest);"


def find_browser() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """The page or the browser did something that a test does not allow."""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session_id: str) -> None:
        self._socket = socket
        self._session_id = session_id
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 1_000
        self.errors: list[str] = []
        """Exceptions in the page's scripts, and what its console calls an error."""
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            waiting = self._answers.pop(told.get("id", -1), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(told)
            elif told.get("method") == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            elif told.get("method") == "Log.entryAdded" and told["params"]["entry"]["source"] == "security":
                self.errors.append(told["params"]["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol. Raises BrowserError."""
        self._next += 1
        self._answers[self._next] = asyncio.get_running_loop().create_future()
        waiting = self._answers[self._next]
        await self._socket.send_json(
            {"id": self._next, "method": method, "params": parameters, "sessionId": self._session_id}
        )
        async with asyncio.timeout(WAIT_S):
            answer = await waiting
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression. Raises BrowserError."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def text(self, selector: str = "body") -> str:
        """What a person reads in the first element that *selector* finds."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(int(WAIT_S / _LOOK_S)):
            try:
                if await self.evaluate(expression):
                    return
            except BrowserError as error:
                if "navigated" not in str(error):  # the page is loaded anew
                    raise
            await asyncio.sleep(_LOOK_S)
        raise BrowserError(f"{expression} does not become true; the page says: {await self.text()}")

    async def until_text(self, text: str, selector: str = "body") -> None:
        """Wait until a person could read *text*."""
        place = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        await self.until(f"({place}).includes({json.dumps(text)})")

    async def resize(self, width: int, height: int = 900) -> None:
        """Set the window's size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = await self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


@contextmanager
def browser(program: str, folder: Path) -> Iterator[str]:
    """A browser whose profile is in *folder*; yields its address for `tab`."""
    process = subprocess.Popen(
        [
            program, "--headless", "--remote-debugging-port=0", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", f"--user-data-dir={folder}", "about:blank",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield _address(process, folder / "DevToolsActivePort")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@asynccontextmanager
async def tab(address: str, *, width: int = 1200, hurry: int = 1) -> AsyncIterator[Page]:
    """A page that shares nothing with others of the browser; timers of its scripts are *hurry* times faster."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        page = Page(socket, await _attach(socket))
        try:
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            await page.resize(width)
            if hurry > 1:
                await page.call("Page.addScriptToEvaluateOnNewDocument", source=_HURRY.format(hurry=hurry))
            yield page
        finally:
            await page.close()


@asynccontextmanager
async def browse(program: str, folder: Path, *, width: int = 1200) -> AsyncIterator[Page]:
    """A page in a browser of its own, whose profile is in *folder*."""
    with browser(program, folder) as address:
        async with tab(address, width=width) as page:
            yield page


def _address(process: subprocess.Popen[bytes], written: Path) -> str:
    """Where the browser listens; it writes that into its profile."""
    for _ in range(int(WAIT_S / _LOOK_S)):
        if process.poll() is not None:
            raise BrowserError(f"the browser ended with {process.returncode} before it listened")
        lines = written.read_text().split() if written.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(_LOOK_S)
    raise BrowserError(f"the browser does not listen after {WAIT_S:g} s")


async def _attach(socket: aiohttp.ClientWebSocketResponse) -> str:
    async def ask(number: int, method: str, **parameters: Any) -> dict[str, Any]:
        await socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(WAIT_S):
            while True:
                told = await socket.receive_json()
                if told.get("id") == number:
                    result: dict[str, Any] = told["result"]
                    return result

    # What belongs to the connection ends with it.
    context = (await ask(1, "Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
    target = (await ask(2, "Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
    session: str = (await ask(3, "Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
    return session
