"""`make pictures`: the pictures of the two pages in `docs`, taken in Chromium while `make demo-drain` runs.

Each shows a real cluster in a state that an operator meets. A state that does not come about within the time fails.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

import pulsar

from bench.demo.drain import Demo, main
from bench.demo.steps import DemoFailed
from tests.support.browser import BrowserError, browse, find_browser

FOLDER: Final = Path(__file__).parent.parent / "docs"

# State → what the page says in it, in JavaScript.
SHOWN: Final = {
    "healthy": "document.querySelector('#verdict').classList.contains('good')"
    " && document.querySelectorAll('#bookies progress').length === 5",
    "bookie-gone": "document.querySelectorAll('#bookies .pill.bad').length > 0",
    "draining": "document.querySelectorAll('#drains progress').length > 0",
    "drain-failed": "document.querySelector('#verdict').classList.contains('bad')"
    " && document.querySelectorAll('#drains details').length > 0",
}

# View of the broker's page → its address, and what it says when it shows all, in JavaScript. The rates of a topic are
# averages of a minute, so the first of them come after that.
TOPICS: Final = {
    "namespaces": ("", "document.querySelectorAll('#messages polyline').length === 2"),
    "topics": ("#/public/default", "/orders-[0-9]+\\t[1-9]/.test(document.querySelector('#topics').innerText)"),
    "topic": (
        "#/persistent/public/default/orders-1",
        "document.querySelector('#subscriptions').innerText.includes('billing')"
        " && document.querySelectorAll('#ledgers tbody tr').length > 0"
        " && document.querySelectorAll('#messages polyline').length === 2",
    ),
}

# Some seconds each way: a drain of the demo's few ledgers takes no longer.
TRIES: Final = 200


class Illustrated(Demo):
    """The demo, with a picture in each state."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._reader: pulsar.Client | None = None

    def picture(self, name: str) -> None:
        """See Demo. The state of a drain that is under way is on the page within its first seconds."""
        if name == "healthy":
            self._read()
        asyncio.run(self._picture(name))
        if name == "drain-failed":
            asyncio.run(self._topics())
            if self._reader is not None:
                self._reader.close()
        self.say(f"  picture: {name}")

    def _read(self) -> None:
        """Two consumers of one topic, which stay until the last picture."""
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "reader.log"))
        self._reader = pulsar.Client(self.cluster.service_url, logger=quiet)
        for name in ("till-1", "till-2"):
            self._reader.subscribe(
                "persistent://public/default/orders-1",
                "billing",
                consumer_type=pulsar.ConsumerType.Shared,
                consumer_name=name,
                message_listener=lambda consumer, message: consumer.acknowledge(message),
            )

    async def _topics(self) -> None:
        """The broker's page, in each of its views."""
        program = find_browser()
        assert program is not None, "it was there for the picture before"
        with tempfile.TemporaryDirectory(prefix="magnetar-pictures-", ignore_cleanup_errors=True) as folder:
            async with browse(program, Path(folder), width=1000) as page:
                for name, (address, shown) in TOPICS.items():
                    await page.open(f"{self.cluster.admin_urls[0]}/{address}")
                    for _ in range(4):  # a minute until there are rates, and more on a busy machine
                        try:
                            await page.until(shown)
                        except BrowserError:
                            continue
                        break
                    else:
                        raise DemoFailed(f"the broker's page never showed {name}: {await page.text()}")
                    await page.evaluate(
                        "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
                    )
                    await page.screenshot(FOLDER / f"page-{name}.png")
                await page.resize(400)
                await page.screenshot(FOLDER / "page-topic-narrow.png")

    async def _picture(self, name: str) -> None:
        program = find_browser()
        if program is None:
            raise DemoFailed("there is no Chromium to draw with (Debian: chromium-headless-shell)")
        with tempfile.TemporaryDirectory(prefix="magnetar-pictures-", ignore_cleanup_errors=True) as folder:
            async with browse(program, Path(folder), width=1000) as page:
                # A page that is opened anew asks at once; one that is open, every two seconds.
                for _ in range(TRIES):
                    await page.open(self.cluster.dashboard_url)
                    await page.until("document.querySelector('#live').textContent.startsWith('live')")
                    if await page.evaluate(SHOWN[name]):
                        break
                else:
                    raise DemoFailed(f"the page never showed the state {name}: {await page.text('#verdict')}")
                await page.evaluate(
                    "document.querySelectorAll('#drains details').forEach((one) => { one.open = true; })"
                )
                await page.screenshot(FOLDER / f"dashboard-{name}.png")
                if name == "draining":
                    await page.resize(400)
                    await page.screenshot(FOLDER / f"dashboard-{name}-narrow.png")


if __name__ == "__main__":
    sys.exit(main(Illustrated))
