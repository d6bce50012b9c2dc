"""The table of early signs in docs/production.md: each problem is planted in brokers of this process, and named by
doctor, alert and page where the table says so."""

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from broker.admin.page.files import PREFIX
from magnetar.cli.doctor import Rounds, _open_secrets
from magnetar.inspect.access import Access
from magnetar.inspect.doctor_rules import ClusterFacts, examine
from magnetar_core.runtime.types import GIB
from tests.process.test_alerts import EARLY_SIGNS, QUIET, TOPIC, alerts, ask_promtool, in_thread, publish, with_promtool
from tests.support.scrapes import Scrape, promtool_test
from tests.support.tls_files import Authority
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.magnetar.inspect.test_doctor_rules import FINE

pytestmark = pytest.mark.process

PAGE: Final = Path(__file__).parents[2] / "docs/production.md"
HOUR_S: Final = 3_600


class Planted:
    """Brokers, as many as the problem needs, and what is said of them."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.sides: list[Side] = []

    async def open(self, count: int = 1, **settings: Any) -> Side:
        self.sides = [await self.world.side(**settings) for _ in range(count)]
        return self.sides[0]

    async def scrape(self) -> Scrape:
        made = Scrape()
        for number, side in enumerate(self.sides):
            made.add("magnetar-broker", f"m{number}:8080", (await self.world.call(side, "GET", "/metrics")).text)
        return made

    async def shown(self) -> list[str]:
        signs: list[str] = (await self.world.call(self.sides[0], "GET", PREFIX + "overview")).json["signs"]
        return signs

    async def findings(self) -> list[str]:
        rounds = Rounds((), 0, 20, None)  # type: ignore[arg-type]  # it draws nothing of brokers
        served = await rounds._ask_brokers([self.sides[0].http_url])
        return [f"{one.where}: {one.text}" for one in examine(ClusterFacts("zk:none", **served))]

    async def client(self) -> pulsar.Client:
        client = await in_thread(lambda: pulsar.Client(self.sides[0].url, logger=QUIET))
        self.world._stack.push_async_callback(in_thread, client.close)
        return client

    async def filled(self) -> Any:
        """An open topic with a subscription that nobody consumes."""
        await self.open()
        client = await self.client()
        await in_thread(lambda: client.subscribe(TOPIC, "billing").close())
        await self.world.run(publish, client, 50)
        (topic,) = self.sides[0].broker.topics.values()
        return topic


@pytest.fixture
async def planted() -> AsyncIterator[Planted]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        yield Planted(world)


async def quota(planted: Planted) -> tuple[Scrape, str]:
    topic = await planted.filled()
    before = await planted.scrape()
    size = topic.ledger.bytes_after(topic.subscriptions["billing"].cursor.mark_delete_position)
    path = "/admin/v2/namespaces/public/default/backlogQuota"
    body = {"limitSize": int(size / 0.97), "policy": "consumer_backlog_eviction"}
    assert (await planted.world.call(planted.sides[0], "POST", path, body)).status < 300
    return before, f"{TOPIC}: its backlog is 97 % of its quota"


async def unread(planted: Planted) -> tuple[Scrape, str]:
    topic = await planted.filled()
    before = await planted.scrape()
    topic.ledger.bytes_after = lambda _: 2 * GIB
    return before, f"billing of {TOPIC}: 50 entries (2.0 GiB) are kept for it, and nobody consumes"


async def certificate(planted: Planted) -> tuple[Scrape, str]:
    authority = Authority(Path(planted.world._stack.enter_context(tempfile.TemporaryDirectory())))
    good, short = (authority.folder(name, days=days) for name, days in (("good", "30"), ("short", "3")))
    other = Planted(AdminWorld(planted.world._stack))
    await other.world.open()
    await other.open(service_port_tls=0, tls_certificate=str(good / "tls.crt"), tls_key=str(good / "tls.key"))
    before = await other.scrape()
    await planted.open(service_port_tls=0, tls_certificate=str(short / "tls.crt"), tls_key=str(short / "tls.key"))
    return before, "its certificate ends in 2 days"


async def balance(planted: Planted) -> tuple[Scrape, str]:
    side = await planted.open(2)
    before = await planted.scrape()
    path = "/admin/v2/namespaces/public/wide"
    assert (await planted.world.call(side, "PUT", path, {"bundles": {"numBundles": 12}})).status < 300
    await planted.world.spread([side], "public/wide")
    return before, f"{side.id} owns 12 bundles, and {planted.sides[1].id} 0"


async def open_keys(planted: Planted) -> tuple[Scrape, str]:
    folder = Path(planted.world._stack.enter_context(tempfile.TemporaryDirectory()))
    folder.chmod(0o755)
    key = folder / "token.key"
    key.write_bytes(bytes(32))
    key.chmod(0o640)
    await planted.open(authentication_enabled=False, token_secret_key=f"file://{key}")
    before = await planted.scrape()
    key.chmod(0o644)
    return before, f"other users of its machine may read its keys: {key}"


PROBLEMS: Final[dict[str, Callable[[Planted], Awaitable[tuple[Scrape, str]]]]] = {
    "MagnetarBacklogQuotaNear": quota,
    "MagnetarSubscriptionUnread": unread,
    "MagnetarCertificateEnds": certificate,
    "MagnetarBundlesUnbalanced": balance,
    "MagnetarKeysOpenToOthers": open_keys,
}


@pytest.mark.parametrize("alert", PROBLEMS)
async def test_a_sign_is_named_by_doctor_and_page(planted: Planted, alert: str) -> None:
    _, text = await PROBLEMS[alert](planted)
    shown = await planted.shown()
    assert [one for one in shown if text in one], shown
    found = await planted.findings()
    said = text.removeprefix(f"billing of {TOPIC}: ")
    assert [one for one in found if said in one], found


@with_promtool
@pytest.mark.parametrize("alert", PROBLEMS)
async def test_an_alert_fires_for_a_sign_and_is_silent_before(planted: Planted, alert: str, tmp_path: Path) -> None:
    before, _ = await PROBLEMS[alert](planted)
    after = await planted.scrape()
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    make = [
        promtool_test("alerts.yaml", before, scrape, question=firing, lasts_s=2 * HOUR_S, answer=answer)
        for scrape, answer in ((after, 1), (before, None))
    ]
    ask_promtool(tmp_path, [alerts()[alert]], *make)


async def test_brokers_that_are_well_show_no_sign(planted: Planted) -> None:
    await planted.filled()
    assert await planted.shown() == []
    assert not [one for one in await planted.findings() if "quota" in one or "nobody consumes" in one]


def test_keys_and_tokens_that_others_may_read_are_named() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        token, key, beside = (folder / name for name in ("admin.token", "tls.key", "token.new.key"))
        for path in (token, key, beside):
            path.write_text("x")
            path.chmod(0o640)
        access = Access(token=f"file:{token}")
        folder.chmod(0o755)
        assert _open_secrets(access, made) == ()
        for path in (token, key, beside):
            path.chmod(0o644)
        assert _open_secrets(access, made) == (str(token), str(key), str(beside))
        assert _open_secrets(Access(), made) == (str(token), str(key), str(beside))
        assert _open_secrets(Access(), None) == ()
        (finding,) = examine(replace(FINE, open_secrets=(str(token),)))
        assert "other users of this machine may read them" in finding.text
        folder.chmod(0o700)
        assert _open_secrets(access, made) == (), "nobody else gets into the folder"


def test_each_row_of_the_table_is_tested() -> None:
    rows = re.findall(r"^\| .* \| (yes|no) \| (`\w+`|no) \| (yes|no) \|$", PAGE.read_text(), re.MULTILINE)
    stored = "MagnetarStorageOpenToOthers"  # of bookies: test_alerts, test_standalone_storage, test_doctor_rules
    assert {alert.strip("`") for _, alert, _ in rows} == {*PROBLEMS, stored}
    assert PROBLEMS.keys() == EARLY_SIGNS
    assert all((doctor, page) == ("yes", "yes") for doctor, _, page in rows)
