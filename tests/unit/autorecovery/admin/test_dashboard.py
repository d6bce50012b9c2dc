"""The dashboard in a real browser, over states of a cluster that are given to it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import autorecovery.admin
from magnetar_core.pages.serving import INDEX, files_of, serve_file
from tests.support.browser import Page, browser, find_browser, tab
from tests.support.dashboard import bookie_gone, drain_failed, drain_under_way, healthy, ledger

BROWSER = find_browser()
DASHBOARD = Path(autorecovery.admin.__file__).parent / "dashboard"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: chromium-headless-shell)"),
]


class Cluster:
    """Serves the page and what it is to show."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.token = ""
        self.is_away = False
        self.url = ""

    async def overview(self, request: web.Request) -> web.Response:
        if self.is_away:
            return web.json_response({"reason": "the metadata store does not answer"}, status=503)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            refused = {"WWW-Authenticate": "Bearer"}
            return web.json_response({"reason": "a token is needed"}, status=401, headers=refused)
        return web.json_response(self.told)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the browser of all these tests."""
    assert BROWSER is not None
    with browser(BROWSER, tmp_path_factory.mktemp("profile")) as found:
        yield found


@asynccontextmanager
async def looking(
    told: dict[str, Any], address: str, *, width: int = 1200, token: str = "", hurry: int = 1
) -> AsyncIterator[tuple[Page, Cluster]]:
    cluster = Cluster(told)
    cluster.token = token
    app = web.Application()

    for name, file in {**files_of(DASHBOARD), "": DASHBOARD / INDEX}.items():
        app.router.add_get(f"/dashboard/{name}", serve_file(file))
    app.router.add_get("/manage/v1/overview", cluster.overview)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with tab(address, width=width, hurry=hurry) as page_:
            await page_.open(f"http://127.0.0.1:{runner.addresses[0][1]}/dashboard/")
            yield page_, cluster
            assert page_.errors == []
    finally:
        await runner.cleanup()


async def test_a_healthy_cluster_is_told_in_one_line_with_its_bookies_and_its_auditor(address: str) -> None:
    async with looking(healthy(), address) as (page, _):
        await page.until_text("Every ledger is known to have all of its copies.", "#verdict")
        assert await page.evaluate("document.querySelectorAll('#bookies tbody tr').length") == 5
        row = await page.text("#bookies tbody tr")
        assert "10.0.0.1:3181" in row
        assert "writable" in row
        assert "28 % of 500 GiB" in row
        assert "/rack-1" in row
        assert await page.evaluate("document.querySelector('#drains').hidden") is True
        assert "10.0.0.1:3181" in await page.text("#summary")
        assert "1,234 ledgers" in await page.text("#summary")
        assert "at most 800 (1.5 MiB a second)" in await page.text("#history")
        assert await page.evaluate("document.querySelectorAll('#history polyline').length") == 1
        assert "48,000 entries, 96 MiB" in await page.text("#nodes")


async def test_a_bookie_that_is_away_shows_with_the_topics_of_its_ledgers_and_the_reasons(address: str) -> None:
    async with looking(bookie_gone(), address) as (page, _):
        await page.until_text("Entries are lost in 1 ledger", "#verdict")
        assert "away" in await page.text("#bookies tbody tr:nth-child(3)")
        assert "unknown" in await page.text("#bookies tbody tr:nth-child(3)")
        first = await page.text("#ledgers tbody tr")
        assert "persistent://shop/orders/paid-partition-3" in first
        assert "10.0.0.3:3181" in first
        assert "entries 0 to 3 are on no bookie that is there" in first
        assert "being repaired" in await page.text("#ledgers tbody tr:nth-child(2)")
        assert (
            await page.evaluate("document.querySelectorAll('#ledgers > div > div > table > tbody > tr').length") == 10
        )
        assert await page.text("#ledgers summary") == "250 more"
        await page.evaluate("document.querySelector('#ledgers summary').click()")
        assert "and 237 that are not listed here" in await page.text("#ledgers")


async def test_ledgers_that_a_drain_moves_lack_nothing_meanwhile(address: str) -> None:
    told = drain_under_way()
    told["under_replicated"] = {"total": 2, "ledgers": [ledger(one, missing_on=["10.0.0.5:3181"]) for one in (1, 2)]}
    async with looking(told, address, hurry=20) as (page, cluster):
        await page.until_text("2 ledgers are moved away from bookies that leave", "#verdict")
        told["under_replicated"]["ledgers"][0]["missing_on"] = ["10.0.0.4:3181"]
        await page.until_text("1 ledger lacks copies.", "#verdict")
        assert "ledger lacks copies; 1 is moved" in await page.text("#summary")
        told["under_replicated"]["total"] = 300
        await page.until_text("299 ledgers lack copies, or are moved as well.", "#verdict")
        assert cluster.told is told


async def test_a_drain_shows_how_far_it_is_and_when_it_will_end(address: str) -> None:
    async with looking(drain_under_way(), address) as (page, _):
        await page.until_text("300 of 400 ledgers", "#drains")
        told = await page.text("#drains")
        for words in ("10.0.0.5:3181", "10 GiB left", "60 ledgers a minute", "about 2 min to go", "1 ledger waits"):
            assert words in told
        assert await page.evaluate("document.querySelector('#drains progress').position") == 0.75
        assert "anna@ops: its disk is old" in await page.text("#bookies tbody tr:nth-child(5)")


async def test_a_failed_drain_names_each_ledger_with_its_reason_and_the_way_out(address: str) -> None:
    async with looking(drain_failed(), address) as (page, _):
        await page.until_text("The drain of 10.0.0.5:3181 failed", "#verdict")
        await page.evaluate("document.querySelector('#drains summary').click()")
        await page.until_text("ledger 32 entries 5 to 9 are on no bookie that is there", "#drains")
        assert "magnetar bookies drain 10.0.0.5:3181" in await page.text("#drains")


async def test_the_page_follows_the_cluster_without_being_loaded_anew(address: str) -> None:
    async with looking(healthy(), address, hurry=20) as (page, cluster):
        await page.until_text("Every ledger", "#verdict")
        await page.evaluate("window.isTheSame = true")
        cluster.told = drain_failed()
        await page.until_text("failed", "#verdict")
        await page.evaluate("document.querySelector('#drains summary').click()")
        cluster.told["bookies"][4]["failed_ledgers"][0]["why"] = "another reason"
        await page.until_text("another reason", "#drains")  # what was opened stays open
        cluster.told = healthy()
        await page.until_text("Every ledger", "#verdict")
        assert await page.evaluate("window.isTheSame") is True


async def test_a_server_that_does_not_answer_is_told_with_the_age_of_what_is_seen(address: str) -> None:
    async with looking(healthy(), address, hurry=20) as (page, cluster):
        await page.until_text("live,", "#live")
        cluster.is_away = True
        await page.until_text("no answer: the metadata store does not answer, what you see is of", "#live")
        assert await page.evaluate("document.querySelectorAll('#bookies tbody tr').length") == 5
        cluster.is_away = False
        await page.until_text("live,", "#live")


async def test_a_token_is_asked_for_where_one_is_needed_and_then_used(address: str) -> None:
    async with looking(healthy(), address, token="s3cret") as (page, _):
        await page.until("document.querySelector('#token')?.hidden === false")
        await page.evaluate(
            "document.querySelector('#token-text').value = 's3cret', document.querySelector('#token').requestSubmit()"
        )
        await page.until_text("Every ledger", "#verdict")
        assert await page.evaluate("document.querySelector('#token').hidden") is True
        assert "s3cret" not in await page.evaluate("document.documentElement.outerHTML + location.href")
        await page.evaluate("document.querySelector('#leave').click()")
        await page.until("document.querySelector('#token')?.hidden === false")
        assert await page.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize("told", [healthy, bookie_gone, drain_under_way, drain_failed])
async def test_at_400_pixels_nothing_is_wider_than_the_page(told: Any, address: str) -> None:
    async with looking(told(), address, width=400) as (page, _):
        await page.until_text("live,", "#live")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 400
        wider = "[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > 400)"
        assert await page.evaluate(f"{wider}.map((one) => one.outerHTML.slice(0, 80))") == []


async def test_names_of_topics_are_text_and_never_markup(address: str) -> None:
    told = healthy()
    evil = "persistent://a/b/<img src=x onerror=window.isHurt=1><script>window.isHurt=1</script>"
    told["under_replicated"] = {"total": 1, "ledgers": [ledger(1, owner=evil)]}
    told["bookies"][0]["read_only_reason"] = told["bookies"][0]["id"] = "<b onclick=alert(1)>x</b>"
    async with looking(told, address) as (page, _):
        await page.until_text(evil, "#ledgers")
        assert await page.evaluate("window.isHurt") is None
        assert await page.evaluate("document.querySelectorAll('main img, main script, main td b').length") == 0


async def test_a_cluster_of_nothing_is_told_in_words(address: str) -> None:
    told = healthy()
    told.update(bookies=[], nodes=[], auditor={"name": None, "tells": None}, history=[[0, 0.0, 0.0]])
    async with looking(told, address) as (page, _):
        await page.until_text("Nobody is auditor", "#verdict")
        assert "No bookie has ever joined" in await page.text("#bookies")
        assert "Nothing was copied" in await page.text("#history")
