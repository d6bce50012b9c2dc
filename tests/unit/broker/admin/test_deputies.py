"""What a broker asks of another one for a caller: the path leads where it says, and the caller's right counts there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast
from urllib.parse import quote, unquote

import pytest
from aiohttp import web

from broker.admin import deputies
from broker.admin.deputies import encode_twice
from broker.admin.http import Refused
from broker.admin.owners import REDIRECTS_MAX, Owners
from magnetar_core.security.caller import TRUSTED, Caller
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side
from tests.unit.broker.admin.test_authentication import SECURE, TOKEN_PLUGIN, bearer

NS = "/admin/v2/namespaces/public/default"
PARTED = "/admin/v2/persistent/public/default/parted"
PARTITIONS = 3


class Cluster:
    """Two brokers that ask callers who they are, and a topic whose partitions are at both."""

    def __init__(self, world: AdminWorld, sides: tuple[Side, Side]) -> None:
        self.world = world
        self.sides = sides
        self.paths: list[tuple[str, str, str | None]] = []
        """(method, path, for whom) of the requests of brokers to each other."""

    async def call(self, role: str, method: str, path: str, body: Any = None, **more: str) -> Answer:
        shown = {"Authorization": bearer(role), **more}
        return await self.world.call(self.sides[0], method, path, body, **shown)  # type: ignore[arg-type]

    async def partition(self, number: int, suffix: str) -> Answer:
        url = f"{PARTED}-partition-{number}{suffix}"
        return await self.world.call(self.sides[0], "GET", url, follow=False, Authorization=bearer("admin"))


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        settings: dict[str, Any] = {
            **SECURE,
            "authorization_enabled": True,
            "super_users": ("admin",),
            "force_delete_namespaces": True,
            "broker_client_plugin": TOKEN_PLUGIN,
            "broker_client_parameters": "token:" + bearer("admin").removeprefix("Bearer "),
        }
        sides = (await world.side(**settings), await world.side(**settings))
        await world.spread(sides)
        made = Cluster(world, sides)
        for role, action in (("reader", "consume"), ("writer", "produce")):
            assert (await made.call("admin", "POST", f"{NS}/permissions/{role}", [action])).status == 204
        assert (await made.call("admin", "PUT", f"{PARTED}/partitions", PARTITIONS)).status == 204
        assert (await made.call("admin", "PUT", f"{PARTED}/subscription/s")).status == 204
        asked = Owners._answer_of

        async def watched(self: Owners, method: str, url: str, *more: Any) -> tuple[int, str, str]:
            made.paths.append((method, "/" + url.split("/", 3)[3], deputies.headers().get(deputies.HEADER)))
            return await asked(self, method, url, *more)

        monkeypatch.setattr(Owners, "_answer_of", watched)
        yield made


ODD = ("..", ".", "a/../b", "s?x=1", "s#x", "%2E%2E", "../../x", "a b", "ü", "a+b", "a&force=true")


@pytest.mark.parametrize("name", ODD)
async def test_the_name_of_a_subscription_leads_nowhere_else(cluster: Cluster, name: str) -> None:
    encoded = quote(quote(name, safe=""), safe="").replace(".", "%252E")
    path = f"{PARTED}/subscription/{encoded}"
    answer = await cluster.call("reader", "PUT", path + "/properties", {"stolen": "yes"})
    assert answer.status == 404, "there is no such subscription"
    assert (await cluster.call("reader", "DELETE", path)).status == 404
    for number in range(PARTITIONS):
        assert "stolen" not in (await cluster.partition(number, "/properties")).text
    if name not in (".", ".."):  # no store can hold these
        assert (await cluster.call("reader", "PUT", path)).status == 204
        assert (await cluster.call("reader", "PUT", path + "/properties", {"own": "yes"})).status == 204
        assert (await cluster.call("reader", "GET", path + "/properties")).json == {"own": "yes"}
        assert name in (await cluster.call("reader", "GET", f"{PARTED}/subscriptions")).json
        assert (await cluster.call("reader", "DELETE", path)).status == 204
    assert cluster.paths
    for _, asked, _ in cluster.paths:
        parts = asked.partition("?")[0].split("/")
        assert not {".", ".."} & set(parts)
        assert parts[6].startswith("parted-partition-")


@pytest.mark.parametrize("name", ["..%2Fs", "s%3Fforce=true", "%2E%2E", "s%23"])
async def test_nor_does_that_of_a_topic_that_is_not_stored(cluster: Cluster, name: str) -> None:
    topic = PARTED.replace("/persistent/", "/non-persistent/")
    assert (await cluster.call("admin", "PUT", f"{topic}/partitions", PARTITIONS)).status == 204
    cluster.paths.clear()
    answer = await cluster.call("reader", "DELETE", f"{topic}/subscription/{name}")
    assert answer.status == 404
    assert {asked.rpartition("/subscription/")[2] for _, asked, _ in cluster.paths} == {encode_twice(unquote(name))}
    assert all("partition-" in asked and "?" not in asked for _, asked, _ in cluster.paths)


async def test_the_owner_asks_whether_the_caller_may(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lets everything through gets no more for a caller than the caller would get itself."""
    open_door = cluster.sides[0].broker.access

    async def let_in(caller: Caller, need: Any) -> None:
        return None

    monkeypatch.setattr(open_door, "check", let_in)
    for role, method, path in (
        ("writer", "DELETE", f"{PARTED}/subscription/s"),
        ("writer", "POST", f"{PARTED}/subscription/s/skip_all"),
        ("reader", "DELETE", f"{PARTED}/truncate"),
        ("reader", "PUT", f"{PARTED}/unload"),
    ):
        cluster.paths.clear()
        answer = await cluster.call(role, method, path)
        assert cluster.paths
        assert {who for _, _, who in cluster.paths} == {role}
        there = [
            number for number in range(PARTITIONS) if (await cluster.partition(number, "/subscriptions")).status == 307
        ]
        assert there, "some partitions are at the other broker"
        assert answer.status == 401, (role, method, path)


async def test_only_super_users_ask_for_others(cluster: Cluster) -> None:
    path = f"{PARTED}-partition-0/properties"
    for named in ("admin", "reader", "", "admin,x"):
        assert (await cluster.call("writer", "GET", path, X_Magnetar_Caller=named)).status == 401
    assert (await cluster.call("reader", "GET", "/admin/v2/brokers/health", X_Magnetar_Caller="admin")).status == 401
    tenants = "/admin/v2/tenants"
    assert (await cluster.call("admin", "GET", tenants)).status == 200
    for named in ("reader", "", "admin,reader", "reader,admin"):
        assert (await cluster.call("admin", "GET", tenants, X_Magnetar_Caller=named)).status == 401, named


SUBSCRIPTION_CALLS = ("clearBacklog/s", "unsubscribe/s", "clearBacklog")


@pytest.mark.parametrize("call", SUBSCRIPTION_CALLS)
async def test_the_roles_of_a_subscription_hold_for_the_whole_namespace(cluster: Cluster, call: str) -> None:
    """With Apache's brokers everybody with `consume` in the namespace may, whose the subscription is or not."""
    assert (await cluster.call("admin", "POST", f"{NS}/permissions/subscription/s", ["owner"])).status == 204
    assert (await cluster.call("admin", "POST", f"{NS}/permissions/owner", ["consume"])).status == 204
    ranges = (await cluster.sides[0].broker.bundles_of("public/default")).ranges
    cluster.paths.clear()
    for path in (f"{NS}/{call}", *(f"{NS}/{one}/{call}" for one in ranges)):
        answer = await cluster.call("reader", "POST", path)
        assert answer.status == 403, path
        assert "other roles" in answer.reason
    expired = await cluster.call("reader", "POST", f"{PARTED}/all_subscription/expireMessages/1")
    assert expired.status == 401
    assert not cluster.paths, "nothing was begun"
    answer = await cluster.call("reader", "POST", f"{NS}/{call.replace('/s', '/other')}")
    assert answer.status == (403 if call == "clearBacklog" else 204)
    assert (await cluster.call("owner", "POST", f"{NS}/{call}")).status == 204
    told = (await cluster.call("reader", "GET", f"{PARTED}/subscriptions")).json
    assert told == ([] if call == "unsubscribe/s" else ["s"])


async def test_a_namespace_is_deleted_by_who_may_delete_it_as_a_whole(cluster: Cluster) -> None:
    assert (await cluster.call("admin", "PUT", "/admin/v2/tenants/shop", {"adminRoles": ["boss"], "allowedClusters": [
        cluster.sides[0].broker.config.cluster_name]})).status == 204  # fmt: skip
    assert (
        await cluster.call("boss", "PUT", "/admin/v2/namespaces/shop/ns", {"bundles": {"numBundles": 4}})
    ).status == 204
    topics = "/admin/v2/persistent/shop/ns"
    assert (await cluster.call("boss", "PUT", f"{topics}/t/partitions", PARTITIONS)).status == 204
    await cluster.world.spread(cluster.sides, "shop/ns")
    assert (await cluster.call("boss", "PUT", f"{topics}/t/subscription/s")).status == 204
    assert (await cluster.call("boss", "GET", f"{topics}/t/partitioned-stats")).status == 200
    cluster.paths.clear()
    assert (await cluster.call("boss", "DELETE", "/admin/v2/namespaces/shop/ns?force=true")).status == 204
    assert {who for _, _, who in cluster.paths} == {None}, "to unload bundles is no right of a tenant's administrator"


async def test_a_redirect_leads_to_the_same_path(cluster: Cluster) -> None:
    """Letter by letter: a `%2E%2E` that became `..` would be taken out, with what stands before it."""
    suffix = "/subscription/%2E%2E/properties"
    answers = [await cluster.partition(number, suffix) for number in range(PARTITIONS)]
    sent_on = [one.headers["Location"] for one in answers if one.status == 307]
    assert sent_on, "some partitions are at the other broker"
    assert all(location.partition("?")[0].endswith(suffix) for location in sent_on), sent_on


async def test_a_redirect_is_followed_to_brokers_of_the_cluster_only(cluster: Cluster) -> None:
    elsewhere: list[str] = []
    location = ""

    async def take(request: web.Request) -> web.Response:
        elsewhere.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async def send_on(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": location})

    app = web.Application()
    app.router.add_get("/on", send_on)
    app.router.add_get("/taken", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = site._server
    base = f"http://127.0.0.1:{cast(asyncio.Server, server).sockets[0].getsockname()[1]}"
    owners = Owners(cluster.sides[0].broker, cluster.sides[0].ownership)
    location = f"{base}/taken"
    with pytest.raises(Refused, match=f"sends this broker on to {base}, which is no broker of the cluster"):
        await owners.ask("GET", f"{base}/on", "x")
    assert not elsewhere
    location = f"{cluster.sides[1].http_url}/admin/v2/clusters"
    assert await owners.ask("GET", f"{base}/on", "x") == [cluster.sides[0].broker.config.cluster_name]
    await runner.cleanup()


async def test_a_circle_of_brokers_ends(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def on_and_on(_: Owners, method: str, url: str, *more: Any) -> tuple[int, str, str]:
        asked.append(url)
        return 307, "", f"{cluster.sides[len(asked) % 2].http_url}/x"

    monkeypatch.setattr(Owners, "_answer_of", on_and_on)
    answer = await cluster.call("reader", "GET", f"{PARTED}/subscriptions")
    assert (answer.status, len(asked)) == (503, REDIRECTS_MAX)


async def test_garbage_of_a_broker_names_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def garbage(*_: Any) -> tuple[int, str, str]:
        return 200, "<html>", ""

    monkeypatch.setattr(Owners, "_answer_of", garbage)
    answer = await cluster.call("reader", "GET", f"{PARTED}/subscriptions")
    assert (answer.status, "what is not JSON: '<html>'" in answer.reason) == (502, True)
    assert cluster.sides[0].http_url in answer.reason or cluster.sides[1].http_url in answer.reason


@pytest.mark.parametrize(
    "caller", [Caller("a"), Caller("a,b"), Caller("ü %2C"), Caller("proxy", "a,b"), Caller(None), Caller("a", "b")]
)
async def test_a_caller_is_named_as_it_is(caller: Caller) -> None:
    deputies.ask_for(caller)
    assert deputies.named_in(deputies.headers()[deputies.HEADER]) == caller
    with deputies.as_own_work():
        assert deputies.headers() == {}
    deputies.ask_for(TRUSTED)
    assert deputies.headers() == {}


@pytest.mark.parametrize(
    ("name", "once", "both"),
    [
        (".", "%2E", "%252E"), ("..", "%2E%2E", "%252E%252E"), ("...", "...", "..."), ("a.b", "a.b", "a.b"),
        ("a/b", "a%2Fb", "a%252Fb"), ("a b", "a%20b", "a%2Bb"), ("?#", "%3F%23", "%253F%2523"),
        ("%2E", "%252E", "%25252E"),
    ],
)  # fmt: skip
def test_a_part_of_a_path_is_encoded_for_itself(name: str, once: str, both: str) -> None:
    assert (deputies.segment(name), deputies.encode_twice(name)) == (once, both)
