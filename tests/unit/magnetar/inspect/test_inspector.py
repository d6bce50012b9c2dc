"""A look at a cluster from outside, over bookies and metadata in memory."""

import json
from collections.abc import AsyncIterator

import pytest

from magnetar.inspect.inspector import Inspector, Lacking
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from magnetar_core.bookkeeper.metadata.marks import underreplication
from tests.support.waiting import eventually
from tests.unit.autorecovery.test_node import Nodes, nodes_over

Looked = tuple[Nodes, Inspector]


@pytest.fixture
async def looked() -> AsyncIterator[Looked]:
    """Five bookies without auto-recovery."""
    async with nodes_over(5) as nodes:
        inspector = Inspector(nodes.cluster.store, "/ledgers", nodes.cluster.clock)
        await inspector.start()
        yield nodes, inspector
        await inspector.close()


async def test_no_ledger_lacks_a_copy_while_all_bookies_are_there(looked: Looked) -> None:
    nodes, inspector = looked
    await nodes.written(3)
    await nodes.written(3, close=False)
    await nodes.cluster.set_read_only("bookie-1", True)
    assert await inspector.lacking() == ([], 2)


async def test_a_ledger_lacks_copies_while_a_bookie_of_its_record_is_away(looked: Looked) -> None:
    nodes, inspector = looked
    ledgers = [
        await nodes.written(count, ensemble=5, close=is_closed) for count in (0, 3) for is_closed in (True, False)
    ]
    await nodes.cluster.kill("bookie-2")
    await eventually(lambda: "bookie-2" not in inspector.directory.available)
    lacking, looked_at = await inspector.lacking()
    assert (lacking, looked_at) == ([Lacking(ledger_id, ("bookie-2",), is_marked=False) for ledger_id in ledgers], 4)
    await nodes.cluster.revive("bookie-2")
    await eventually(lambda: "bookie-2" in inspector.directory.available)
    assert await inspector.lacking() == ([], 4)


async def test_what_auto_recovery_has_marked_lacks_copies_and_what_cannot_be_read_is_not_known(looked: Looked) -> None:
    nodes, inspector = looked
    marked, unreadable = await nodes.written(1), await nodes.written(1)
    await nodes.cluster.store.put(underreplication.mark_path("/ledgers", marked), b'replica: "bookie-1"\n')
    await nodes.cluster.store.put(ledger_path("/ledgers", unreadable), b"nonsense")
    (first, second), looked_at = await inspector.lacking()
    assert (first, looked_at) == (Lacking(marked, (), is_marked=True), 2)
    assert (second.ledger_id, second.missing_on, second.is_marked) == (unreadable, (), False)
    assert second.problem


async def test_a_bookie_that_listens_at_any_address_is_asked_at_its_own(looked: Looked) -> None:
    nodes, inspector = looked
    addresses = {"any4": "0.0.0.0", "any6": "::", "own": "10.0.0.9"}
    for name, host in addresses.items():
        info = BookieServiceInfo((bookie_endpoint("10.0.0.7", 3181), http_endpoint(host, 8000)))
        await nodes.cluster.store.put(f"/ledgers/available/{name}", info.encode())
    await eventually(lambda: addresses.keys() <= inspector.directory.available)
    bookies = {bookie.bookie_id: bookie for bookie in await inspector.bookies()}
    assert {bookies[name].address for name in addresses} == {"10.0.0.7:3181"}
    assert [bookies[name].http for name in addresses] == [
        "http://10.0.0.7:8000", "http://10.0.0.7:8000", "http://10.0.0.9:8000",
    ]  # fmt: skip


async def test_brokers_are_where_they_say(looked: Looked) -> None:
    nodes, inspector = looked
    assert await inspector.broker_urls(over_tls=False) == []
    for name, urls in {
        "a:1": {"webServiceUrl": "http://a:1", "webServiceUrlTls": "https://a:2"},
        "b:2": {"webServiceUrlTls": "https://b:2"},
    }.items():
        await nodes.cluster.store.put(f"/loadbalance/brokers/{name}", json.dumps(urls).encode())
    assert await inspector.broker_urls(over_tls=False) == ["http://a:1"]
    assert await inspector.broker_urls(over_tls=True) == ["https://a:2", "https://b:2"]
