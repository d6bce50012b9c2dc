"""The page of a broker in a real browser, over a broker with its HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Page, browser, find_browser, tab
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.admin.page.test_calls import GUARDED, NS, TOPIC, page_of, record_ledger, use
from tests.unit.broker.admin.test_authentication import SECURE, bearer

BROWSER = find_browser()
EVIL = "<img src=x onerror=window.isHurt=1><b>"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: chromium-headless-shell)"),
]


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the browser of all these tests."""
    assert BROWSER is not None
    with browser(BROWSER, tmp_path_factory.mktemp("profile")) as found:
        yield found


@asynccontextmanager
async def looking(side: Side, address: str, *, width: int = 1200, at: str = "", hurry: int = 1) -> AsyncIterator[Page]:
    async with tab(address, width=width, hurry=hurry) as page:
        await page.open(f"{side.http_url}/{at}")
        yield page
        assert page.errors == []


async def an_hour(side: Side) -> None:
    """As if the topics had been open for half a minute."""
    page_of(side)._history._noted_ms -= 30_000
    page_of(side)._history._last_step -= 1
    page_of(side)._history._first_step -= 1
    await page_of(side).take_counts()


async def click(page: Page, text: str) -> None:
    links = f"[...document.querySelectorAll('main a')].filter((one) => one.textContent === {text!r})"
    await page.until(f"{links}.length > 0")
    await page.evaluate(f"{links}[0].click()")


async def test_the_storage_in_the_same_process_is_shown_with_what_is_wrong(world: AdminWorld, address: str) -> None:
    side = await world.side()
    bookies = [{"name": "bookie-1", "problems": [], "free_bytes": 3 << 30, "total_bytes": 8 << 30}]
    told = {"bookies": bookies, "lost_ledgers": 0}
    page_of(side)._storage = lambda: told
    async with looking(side, address) as page:
        await page.until_text("bookie-1", "#storage")
        assert "writable\t3.0 GiB\t8.0 GiB" in await page.text("#storage")
        assert await page.evaluate("document.querySelector('#verdict').hidden") is True
    bookies[0] |= {"problems": [f"read-only: disk: {EVIL}", "1 entries lost"], "free_bytes": None}
    told["lost_ledgers"] = 2
    async with looking(side, address) as page:
        await page.until_text("1 entries lost", "#storage")
        assert "unknown" in await page.text("#storage")
        verdict = f"bookie-1: read-only: disk: {EVIL}. 2 ledgers have entries that no bookie has."
        assert await page.text("#verdict") == verdict


async def test_signs_of_trouble_are_listed_and_nothing_where_there_is_none(world: AdminWorld, address: str) -> None:
    side = await world.side()
    async with looking(side, address) as page:
        await page.until_text(side.id, "#brokers")
        assert await page.evaluate("document.querySelector('#signs').hidden") is True
        page_of(side)._signs = lambda: iter([f"billing of {EVIL}: nobody consumes"])  # type: ignore[method-assign]
        await page.until_text(f"billing of {EVIL}: nobody consumes", "#signs")


async def test_one_goes_from_the_namespaces_to_a_topic_its_subscriptions_and_its_ledgers(
    world: AdminWorld, address: str
) -> None:
    side = await world.side()
    await use(world, side)
    await record_ledger(side)
    await an_hour(side)
    async with looking(side, address) as page:
        await page.until_text(NS, "#namespaces")
        assert "1\nopen topic" in await page.text("#summary")
        assert "3\nentries of backlog" in await page.text("#summary")
        assert f"{side.id} (this one)" in await page.text("#brokers")
        assert await page.evaluate("document.querySelectorAll('#messages polyline').length") == 2
        assert await page.evaluate("document.querySelectorAll('#backlog polyline').length") == 1
        begins = "document.querySelector('#backlog polyline').getAttribute('points')"
        assert float((await page.evaluate(begins)).split(",")[0]) > 590, "the time before the broker began is a gap"
        assert (await page.text("#backlog .scale")).split() == ["3", "2", "0"]
        assert await page.evaluate("document.querySelector('#token').hidden") is True
        await click(page, NS)
        await page.until_text("orders", "#topics")
        assert side.id in await page.text("#topics")
        assert await page.evaluate("document.querySelector('#namespaces').hidden") is True
        await click(page, "orders")
        await page.until_text("billing", "#subscriptions")
        await page.evaluate("document.querySelector('#subscriptions summary').click()")
        assert "ann 127.0.0.1" in await page.text("#subscriptions")
        assert "till" in await page.text("#producers")
        await page.until_text("10.0.0.1:3181, 10.0.0.2:3181", "#ledgers")
        assert await page.evaluate("location.hash") == f"#/persistent/{NS}/orders"
        await page.evaluate("history.back()")
        await page.until_text("orders", "#topics")
        assert await page.evaluate("document.querySelector('#subscriptions').hidden") is True


async def test_the_page_follows_the_broker_without_being_loaded_anew(world: AdminWorld, address: str) -> None:
    side = await world.side()
    async with looking(side, address, at=f"#/{NS}", hurry=20) as page:
        await page.until_text("There is no topic.", "#topics")
        await page.evaluate("window.isTheSame = true")
        await use(world, side)
        await page.until_text("orders", "#topics")
        assert await page.evaluate("window.isTheSame") is True


async def test_topics_are_found_by_a_part_of_their_name(world: AdminWorld, address: str) -> None:
    side = await world.side()
    for name in ("orders", "bills"):
        assert (await world.call(side, "PUT", f"/admin/v2/persistent/{NS}/{name}")).status == 204
    async with looking(side, address, at=f"#/{NS}") as page:
        await page.until_text("bills", "#topics")
        await page.evaluate(
            "document.querySelector('#find').value = 'ord', "
            "document.querySelector('#find').dispatchEvent(new Event('input'))"
        )
        await page.until("document.querySelectorAll('#topics tbody tr').length === 1")
        assert "orders" in await page.text("#topics")


async def test_names_are_text_and_never_markup(world: AdminWorld, address: str) -> None:
    side = await world.side()
    await use(world, side, f"persistent://{NS}/{EVIL}")
    async with looking(side, address, at=f"#/{NS}") as page:
        await page.until_text(EVIL, "#topics")
        await click(page, EVIL)
        await page.until_text("billing", "#subscriptions")
        assert EVIL in await page.text("#path")
        assert await page.evaluate("window.isHurt") is None
        assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0


async def test_a_topic_that_is_not_there_or_not_open_is_told_in_words(world: AdminWorld, address: str) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", f"/admin/v2/persistent/{NS}/orders")).status == 204
    await world.call(side, "PUT", f"/admin/v2/namespaces/{NS}/unload")
    async with looking(side, address, at=f"#/persistent/{NS}/orders") as page:
        await page.until_text("This topic is not open", "#verdict")
        await page.evaluate(f"location.hash = '#/persistent/{NS}/nothing'")
        await page.until_text(f"Topic persistent://{NS}/nothing not found", "#live")
        for odd in ("#/%", "#/a/b/c", "#////"):
            await page.evaluate(f"location.hash = {odd!r}")
            await page.until_text("public/default", "#namespaces")


async def test_who_has_a_token_or_a_password_gets_in_and_out_again(world: AdminWorld, address: str) -> None:
    side = await world.side(**SECURE)
    await asyncio.sleep(0)
    token = bearer().removeprefix("Bearer ")
    async with looking(side, address) as page:

        async def show(**fields: str) -> None:
            await page.until("document.querySelector('#token')?.hidden === false")
            for name, value in fields.items():
                await page.evaluate(f"document.querySelector('#{name}-text').value = {value!r}")
            await page.evaluate("document.querySelector('#token').requestSubmit()")

        await page.until("document.querySelector('#token').hidden === false")
        assert NS not in await page.text()
        await show(token="wrong")
        await page.until_text("who you said you are is not known here", "#live")
        await show(token=token)
        await page.until_text(NS, "#namespaces")
        assert "ann\nis who you are" in await page.text("#summary")
        assert token not in await page.evaluate("document.documentElement.outerHTML + location.href + document.cookie")
        await page.evaluate("document.querySelector('#leave').click()")
        await page.until("document.querySelector('#token')?.hidden === false")
        assert NS not in await page.text()
        await show(name="ann", password="pw")
        await page.until_text("ann\nis who you are", "#summary")


async def test_who_may_not_see_a_topic_is_told_so_and_not_asked_again_who_it_is(
    world: AdminWorld, address: str
) -> None:
    side = await world.side(**SECURE, **GUARDED)
    topic = f"/admin/v2/persistent/{NS}/orders"
    assert (await world.call(side, "PUT", topic, Authorization=bearer("admin"))).status == 204
    async with looking(side, address, at=f"#/persistent/{NS}/orders") as page:
        await page.until("document.querySelector('#token')?.hidden === false")
        token = bearer("ann").removeprefix("Bearer ")
        await page.evaluate(f"document.querySelector('#token-text').value = {token!r}")
        await page.evaluate("document.querySelector('#token').requestSubmit()")
        await page.until_text("ann may not", "#live")
        assert await page.evaluate("document.querySelector('#token').hidden") is True


@pytest.mark.parametrize("at", ["", f"#/{NS}", f"#/{TOPIC.replace('://', '/')}"])
async def test_at_400_pixels_nothing_is_wider_than_the_page(world: AdminWorld, address: str, at: str) -> None:
    side = await world.side()
    await use(world, side)
    await an_hour(side)
    async with looking(side, address, width=400, at=at) as page:
        await page.until_text("live,", "#live")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 400
        every = "[...document.querySelectorAll('main :not(th)')]"
        wider = f"{every}.filter((one) => one.getBoundingClientRect().right > 400)"
        assert await page.evaluate(f"{wider}.map((one) => one.outerHTML.slice(0, 80))") == []


async def test_a_broker_that_does_not_answer_any_more_is_told_with_the_age_of_what_is_seen(
    world: AdminWorld, address: str
) -> None:
    side = await world.side()
    async with looking(side, address, hurry=20) as page:
        await page.until_text("live,", "#live")
        await side.admin.stop()
        await page.until_text("what you see is of", "#live")
        assert NS in await page.text("#namespaces")


def test_both_pages_take_style_and_scripts_from_the_same_files() -> None:
    import autorecovery.admin
    from broker.admin.page.files import FILES
    from magnetar_core.pages.serving import files_of

    other = files_of(Path(autorecovery.admin.__file__).parent / "dashboard")
    shared: Any = FILES.keys() & other.keys() - {"index.html"}
    assert shared == {"page.css", "shared.js"}
    assert all(FILES[name] == other[name] for name in shared)
