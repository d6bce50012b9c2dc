"""What the page's calls answer, and to whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

from broker.admin.page import calls
from broker.admin.page.calls import LEDGERS_SHOWN_MAX, PAGE_CALLS_AT_ONCE, SIGNS_MAX, TOPICS_PER_TURN, PageApi
from broker.admin.page.files import FILES, OPEN_PATHS, PREFIX
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from tests.support.callers import believe_everybody
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.admin.test_authentication import SECURE, basic, bearer

GUARDED: dict[str, Any] = {"authorization_enabled": True, "super_users": ("admin",)}
NS = "public/default"
TOPIC = f"persistent://{NS}/orders"
CALLS = ("overview", f"namespaces/{NS}", f"topics/persistent/{NS}/orders", f"ledgers/persistent/{NS}/orders")


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def use(world: AdminWorld, side: Side, topic: str = TOPIC) -> None:
    """Three messages are sent, and a consumer that acknowledges none of them stays."""
    client = pulsar.Client(side.url)

    def work() -> None:
        client.subscribe(topic, "billing", consumer_name="ann")
        producer = client.create_producer(topic, producer_name="till")
        for number in range(3):
            producer.send(b"%d" % number)

    await world.run(work)
    world._stack.push_async_callback(asyncio.to_thread, client.close)


async def record_ledger(side: Side) -> None:
    """The topic's ledger gets the record that ledgers in memory do not have."""
    (topic,) = side.broker.topics.values()
    (told,) = topic.ledger.stats()["ledgers"]
    segment = Segment(0, ("10.0.0.1:3181", "10.0.0.2:3181"))
    metadata = LedgerMetadata(
        ensemble_size=2, write_quorum=2, ack_quorum=2, digest_type=DigestType.CRC32C, segments=(segment,)
    )
    await LedgerStore(side.store).create_with_id(told["ledgerId"], metadata)


def page_of(side: Side) -> PageApi:
    found: PageApi = side.admin._page
    return found


async def ask(world: AdminWorld, side: Side, path: str, **more: Any) -> Any:
    answer = await world.call(side, "GET", PREFIX + path, **more)
    assert answer.status == 200, answer.text
    return answer.json


async def test_storage_is_told_to_those_who_see_everything(world: AdminWorld) -> None:
    side = await world.side(**SECURE, **GUARDED)
    assert (await ask(world, side, "overview", Authorization=bearer("admin")))["storage"] is None, "it is elsewhere"
    page_of(side)._storage = lambda: {"bookies": [], "lost_ledgers": 0}
    assert (await ask(world, side, "overview", Authorization=bearer("admin")))["storage"] == {
        "bookies": [],
        "lost_ledgers": 0,
    }
    assert (await ask(world, side, "overview", Authorization=bearer("ann")))["storage"] is None


async def test_a_broker_tells_so_many_signs_and_brokers_that_are_older_tell_none(world: AdminWorld) -> None:
    side = await world.side()
    page = page_of(side)
    page._signs = lambda: (f"sign {number}" for number in range(SIGNS_MAX + 1))  # type: ignore[method-assign]
    assert (await ask(world, side, "overview"))["signs"] == [f"sign {number}" for number in range(SIGNS_MAX)]
    assert page._all_signs({"b1": {"connections": 1}, "b2": {"signs": ["one"], "bundles": 99}}) == ["one"]


async def test_topics_are_shown_with_who_is_connected_and_where_their_ledgers_are(world: AdminWorld) -> None:
    side = await world.side()
    await use(world, side)
    told = await ask(world, side, "overview")
    row = next(one for one in told["namespaces"] if one["name"] == NS)
    assert (row["topics"], row["backlog"], row["producers"], row["consumers"]) == (1, 3, 1, 1)
    assert told["caller"] is None
    assert [one["name"] for one in told["brokers"]] == [side.id]
    topics = (await ask(world, side, f"namespaces/{NS}"))["topics"]
    assert [(one["name"], one["broker"], one["backlog"]) for one in topics] == [(TOPIC, side.id, 3)]
    topic = await ask(world, side, f"topics/persistent/{NS}/orders")
    assert topic["stats"]["messages_in"] == 3
    assert [one["producerName"] for one in topic["stats"]["publishers"]] == ["till"]
    (subscription,) = topic["stats"]["subscriptions"]
    assert [one["consumerName"] for one in subscription["consumers"]] == ["ann"]
    ledgers = await ask(world, side, f"ledgers/persistent/{NS}/orders")
    assert ledgers["ledgers_total"] == len(ledgers["ledgers"]) == 1
    assert "does not exist" in ledgers["ledgers"][0]["problem"]
    await record_ledger(side)
    (ledger,) = (await ask(world, side, f"ledgers/persistent/{NS}/orders"))["ledgers"]
    assert ledger["segments"] == [[0, ["10.0.0.1:3181", "10.0.0.2:3181"]]]
    assert ledger["quorums"] == [2, 2, 2]
    assert ledger["entries"] == 3


async def test_the_last_hour_is_remembered_without_anybody_looking(world: AdminWorld) -> None:
    side = await world.side()
    await use(world, side)
    page_of(side)._history._noted_ms -= 30_000
    page_of(side)._history._last_step -= 1
    page_of(side)._history._first_step -= 1
    await page_of(side).take_counts()
    for path in CALLS[:3]:
        hour = (await ask(world, side, path))["hour"]
        assert max(number or 0 for number in hour["messages_in"]) > 0, path
        assert hour["messages_in"][0] is None, "the broker was not there"
        assert hour["backlog"][-1] == 3


async def test_a_topic_on_another_broker_is_told_by_its_owner_and_added_to_the_sums(world: AdminWorld) -> None:
    first, second = await world.side(), await world.side()
    await use(world, first)
    owner = next(one for one in (first, second) if one.broker.topics)
    for side in (first, second):
        told = await ask(world, side, "overview")
        assert next(one for one in told["namespaces"] if one["name"] == NS)["backlog"] == 3
        assert {one["name"]: one["problem"] for one in told["brokers"]} == {first.id: "", second.id: ""}
        assert (await ask(world, side, f"namespaces/{NS}"))["topics"][0]["broker"] == owner.id
        topic = await ask(world, side, f"topics/persistent/{NS}/orders")
        assert topic["broker"] == owner.id
        assert topic["answered_by"] == side.id
        assert topic["stats"]["messages_in"] == 3
        assert (await ask(world, side, f"ledgers/persistent/{NS}/orders"))["ledgers_total"] == 1


async def test_a_broker_that_does_not_answer_is_named_and_the_others_are_shown(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_ASK_S", 0.3)
    first, second = await world.side(), await world.side()
    await use(world, first)
    await second.admin.stop()
    told = await ask(world, first, "overview")
    problems = {one["name"]: one["problem"] for one in told["brokers"]}
    assert problems[first.id] == ""
    assert problems[second.id] != ""
    assert told["silent_brokers"] == 1
    assert NS in [one["name"] for one in told["namespaces"]]


async def test_looking_opens_no_topic_and_takes_no_bundle(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", f"/admin/v2/persistent/{NS}/orders")).status == 204
    await world.call(side, "PUT", f"/admin/v2/namespaces/{NS}/unload")
    assert side.ownership.owned_bundles == []
    for path in CALLS:
        await ask(world, side, path)
    assert (await ask(world, side, f"topics/persistent/{NS}/orders"))["is_open"] is False
    assert (await ask(world, side, f"namespaces/{NS}"))["topics"] == [{"name": TOPIC, "is_open": False}]
    assert side.ownership.owned_bundles == []
    assert not side.broker.topics


async def test_what_is_not_there_is_not_found(world: AdminWorld) -> None:
    side = await world.side()
    for path in ("namespaces/public/nowhere", f"topics/persistent/{NS}/nothing", "topics/persistent/no/where/x"):
        assert (await world.call(side, "GET", PREFIX + path)).status == 404, path


# -------------------------------------------------------------------------------- who may see what


@pytest.fixture
async def guarded(monkeypatch: pytest.MonkeyPatch, world: AdminWorld) -> Side:
    """Two namespaces of a tenant whose administrator is boss; ann may consume in one, bob only from one topic."""
    believe_everybody(monkeypatch)
    side = await world.side(**GUARDED)

    async def do(method: str, path: str, body: Any = None) -> None:
        answer = await world.call(side, method, "/admin/v2/" + path, body, X_Role="admin")
        assert answer.status in (200, 204), answer.text

    await do("PUT", "tenants/shop", {"adminRoles": ["boss"], "allowedClusters": [side.broker.config.cluster_name]})
    await do("PUT", "tenants/empty", {"adminRoles": ["boss"], "allowedClusters": [side.broker.config.cluster_name]})
    for namespace in ("shop/open", "shop/closed"):
        await do("PUT", f"namespaces/{namespace}")
        for topic in ("one", "two"):
            await do("PUT", f"persistent/{namespace}/{topic}")
    await do("POST", "namespaces/shop/open/permissions/ann", ["consume"])
    await do("POST", "persistent/shop/closed/two/permissions/bob", ["produce"])
    return side


async def test_each_caller_sees_what_it_may_see(world: AdminWorld, guarded: Side) -> None:
    async def seen(role: str) -> tuple[list[str], dict[str, bool]]:
        told = await ask(world, guarded, "overview", X_Role=role)
        assert bool(told["brokers"]) == (role == "admin") == (told["hour"] is not None)
        return told["tenants"], {one["name"]: one["is_whole"] for one in told["namespaces"]}

    tenants, namespaces = await seen("admin")
    assert {"shop", "empty"} <= set(tenants)
    assert {"shop/open", "shop/closed"} <= namespaces.keys()
    assert await seen("boss") == (["empty", "shop"], {"shop/closed": True, "shop/open": True})
    assert await seen("ann") == ([], {"shop/open": True})
    assert await seen("bob") == ([], {"shop/closed": False})
    assert await seen("stranger") == ([], {})


async def test_who_may_see_one_topic_of_a_namespace_gets_that_one_and_no_sums_of_others(
    world: AdminWorld, guarded: Side
) -> None:
    told = await ask(world, guarded, "namespaces/shop/closed", X_Role="bob")
    assert [one["name"] for one in told["topics"]] == ["persistent://shop/closed/two"]
    assert told["topics_total"] == 1
    assert told["sum"]["topics"] == 1
    assert told["hour"] is None
    overview = await ask(world, guarded, "overview", X_Role="bob")
    assert overview["namespaces"] == [{"name": "shop/closed", "is_whole": False}]
    assert overview["sum"]["topics"] == 0


@pytest.mark.parametrize(
    ("role", "path"),
    [
        ("ann", "namespaces/shop/closed"),
        ("ann", "namespaces/shop/nowhere"),
        ("ann", "topics/persistent/shop/closed/one"),
        ("ann", "topics/persistent/shop/closed/nothing"),
        ("bob", "topics/persistent/shop/closed/one"),
        ("bob", "ledgers/persistent/shop/closed/one"),
        ("boss", "served"),
        ("boss", "served/shop/open"),
        ("stranger", "namespaces/shop/open"),
    ],
)
async def test_who_may_not_see_a_thing_is_refused_whether_it_is_there_or_not(
    world: AdminWorld, guarded: Side, role: str, path: str
) -> None:
    answer = await world.call(guarded, "GET", PREFIX + path, X_Role=role)
    assert answer.status in (401, 403)
    assert "WWW-Authenticate" not in answer.headers, "the page would ask who it is, which is known"


async def test_nobody_is_told_nothing_where_rights_are_asked_for(world: AdminWorld, guarded: Side) -> None:
    for path in ("overview", "namespaces/shop/open", "topics/persistent/shop/open/one", "served"):
        assert (await world.call(guarded, "GET", PREFIX + path)).status in (401, 403), path


# -------------------------------------------------------------------------------- authentication


async def test_the_files_are_open_and_the_calls_are_not(world: AdminWorld) -> None:
    side = await world.side(**SECURE)
    for path in OPEN_PATHS:
        answer = await world.call(side, "GET", path)
        assert answer.status == 200, path
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for path in (*CALLS, "served", "nothing", "../admin/v2/clusters"):
        answer = await world.call(side, "GET", PREFIX + path)
        assert answer.status == 401, path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer"), "else browsers open a dialogue of their own"
        assert answer.json["methods"] == ["basic", "token"]
    for shown in (bearer(), basic("ann:pw")):
        assert (await ask(world, side, "overview", Authorization=shown))["caller"] == "ann"


async def test_nothing_beside_the_page_is_served_as_a_file(world: AdminWorld) -> None:
    side = await world.side()
    for path in ("/page/../server.py", "/page/%2e%2e/calls.py", "/page/files.py", "/page/", "/page"):
        assert (await world.call(side, "GET", path)).status in (403, 404), path
    assert "topics.js" in FILES


# -------------------------------------------------------------------------------- limits


async def test_pages_that_are_answered_at_the_same_time_are_limited(world: AdminWorld) -> None:
    side = await world.side()
    page_of(side)._under_way = PAGE_CALLS_AT_ONCE
    answer = await world.call(side, "GET", PREFIX + "overview")
    assert answer.status == 503
    assert "try again" in answer.reason
    page_of(side)._under_way = 0
    assert (await world.call(side, "GET", PREFIX + "overview")).status == 200


async def test_the_newest_ledgers_are_shown_and_the_others_counted(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LEDGERS_SHOWN_MAX", 2)
    side = await world.side()
    await use(world, side)
    (topic,) = side.broker.topics.values()
    many = [{"ledgerId": number, "entries": 1, "size": 1} for number in range(5)]
    monkeypatch.setattr(topic.ledger, "stats", lambda: {"ledgers": many})
    told = await ask(world, side, f"ledgers/persistent/{NS}/orders")
    assert told["ledgers_total"] == 5
    assert [one["ledger_id"] for one in told["ledgers"]] == [4, 3]
    assert all("problem" in one for one in told["ledgers"]), "they are not there, which is told in words"
    assert LEDGERS_SHOWN_MAX > 2


async def test_the_namespaces_of_an_answer_are_limited_and_the_others_counted(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "NAMESPACES_SHOWN_MAX", 1)
    side = await world.side()
    assert (await world.call(side, "PUT", "/admin/v2/namespaces/public/second")).status == 204
    told = await ask(world, side, "overview")
    assert len(told["namespaces"]) == 1
    assert told["namespaces_total"] >= 2


async def test_counters_are_taken_in_turns(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TOPICS_PER_TURN", 1)
    side = await world.side()
    for name in ("a", "b", "c"):
        assert (await world.call(side, "PUT", f"/admin/v2/persistent/{NS}/{name}")).status == 204
    turns = 0
    work = asyncio.get_running_loop().create_task(page_of(side).take_counts())
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert TOPICS_PER_TURN > 1
