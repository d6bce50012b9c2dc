"""A receiver that is down while a bookie is drained and removed is told of everything, in order, when it is there."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorecovery.callbacks.registry import CallbackRegistry
from autorecovery.callbacks.rules import Callback, Line, Outcome
from magnetar.inspect.broker_admin import AdminClient
from magnetar.inspect.inspector import inspecting
from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import decode
from tests.support.processes import Load, bookies_of, prepare, until
from tests.support.shell import bookies
from tests.support.zookeeper import why_not
from tests.unit.autorecovery.test_callback_receiver import free_port, save_receiver

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# The waits between two attempts have grown to a minute while the drain went on.
PATIENCE_S = 180.0


async def register(cluster: Cluster, url: str) -> Callback:
    async with inspecting(cluster.metadata_url) as inspector:
        return await CallbackRegistry(inspector.store, inspector.root).register(url, None, (), (), "me", 1)


async def forget(cluster: Cluster, callback: Callback) -> None:
    async with inspecting(cluster.metadata_url) as inspector:
        await CallbackRegistry(inspector.store, inspector.root).remove(callback.id)


async def waiting_for(cluster: Cluster, callback: Callback) -> list[tuple[str, str]]:
    """(from, to) of each event that waits, in order."""
    found = []
    async with inspecting(cluster.metadata_url) as inspector:
        registry = CallbackRegistry(inspector.store, inspector.root)
        for event_id in await registry.pending(callback.id):
            pending = await registry.read_pending(callback.id, event_id)
            assert pending is not None
            event = decode(pending.body)
            found.append((event.before, event.after))
    return found


async def log_of(cluster: Cluster, callback: Callback) -> tuple[tuple[Line, ...], int]:
    """(what was delivered, how many events wait)."""
    async with inspecting(cluster.metadata_url) as inspector:
        registry = CallbackRegistry(inspector.store, inspector.root)
        return await registry.log_of(callback.id), len(await registry.pending(callback.id))


@pytest.mark.long("two drains under load, and the waits between attempts have grown meanwhile")
def test_a_receiver_that_was_down_during_a_drain_is_told_of_it_in_order(
    cluster: Cluster, namespace: str, topic: str, tmp_path: Path
) -> None:
    port = free_port()
    callback = asyncio.run(register(cluster, f"http://127.0.0.1:{port}/"))
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace)
    admin.create_topic(topic, 1)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(500)
        leaving = bookies_of(cluster, f"{topic}-partition-0")[0]
        bookie_id = next(
            one["bookie_id"]
            for one in bookies(cluster.metadata_url, "list")[1]
            if one["bookie_id"].endswith(f":{cluster.member(leaving).port}")
        )
        assert bookies(cluster.metadata_url, "drain", bookie_id)[0] == 0
        assert bookies(cluster.metadata_url, "cancel", bookie_id)[0] == 0
        code, told = bookies(cluster.metadata_url, "drain", bookie_id, "--wait", "--timeout", "240")
        assert (code, told["state"]) == (0, "drained")
        load.finish()
        load.check()
    lines, _ = asyncio.run(log_of(cluster, callback))
    assert {line.outcome for line in lines} == {Outcome.WAITS}
    moves = asyncio.run(waiting_for(cluster, callback))
    # The first drain may have ended before it was called off.
    assert [move for move in moves[:-3] if move != ("draining", "drained")] == [("active", "draining")]
    assert [after for _, after in moves[-3:]] == ["active", "draining", "drained"]
    # What waits survives the auditor, which may be the bookie that leaves.
    cluster.kill(leaving)
    assert bookies(cluster.metadata_url, "remove", bookie_id, "--yes")[0] == 0
    output = tmp_path / "received"
    with output.open("w") as file:
        receiver = subprocess.Popen(
            [sys.executable, str(save_receiver(tmp_path)), str(port)],
            env={**os.environ, "SECRET": callback.secret}, stdout=file, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        until(
            lambda: len(output.read_text().splitlines()) > len(moves),
            "the receiver is told of everything",
            PATIENCE_S,
        )
        until(lambda: asyncio.run(log_of(cluster, callback))[1] == 0, "nothing waits any more")
    finally:
        receiver.kill()
        receiver.wait()
    moves.append(("drained", "removed"))
    assert output.read_text().splitlines() == [f"{bookie_id} {before} {after}" for before, after in moves]
    lines, _ = asyncio.run(log_of(cluster, callback))
    assert [(line.after, line.outcome) for line in lines] == [(after, Outcome.DELIVERED) for _, after in moves]
    asyncio.run(forget(cluster, callback))
