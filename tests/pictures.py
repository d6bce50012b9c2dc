"""`make pictures`: the pictures of the dashboard in `docs`, taken in Chromium while `make demo-drain` runs.

Each shows a real cluster in a state that an operator meets. A state that does not come about within the time fails.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from magnetar.demo.drain import Demo, main
from magnetar.demo.steps import DemoFailed
from tests.support.browser import browse, find_browser

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

# Some seconds each way: a drain of the demo's few ledgers takes no longer.
TRIES: Final = 200


class Illustrated(Demo):
    """The demo, with a picture in each state."""

    def picture(self, name: str) -> None:
        """See Demo. The state of a drain that is under way is on the page within its first seconds."""
        asyncio.run(self._picture(name))
        self.say(f"  picture: {name}")

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
