"""A bookie is drained and removed under load, with real processes: nothing is lost and every ledger has its copies."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.inspect.inspector import inspecting
from magnetar.processes.cluster import Cluster
from tests.support.processes import Load, bookies_of, cluster_of, prepare
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPIC = "persistent://public/default/load"


def bookies(cluster: Cluster, *words: str) -> tuple[int, Any]:
    """`magnetar bookies …` as a person runs it: exit code, and the answer."""
    command = [sys.executable, "-m", "magnetar", "bookies", *words, "--json", "--metadata", cluster.metadata_url]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout, found.stderr
    return found.returncode, json.loads(found.stdout)


async def copies(cluster: Cluster, left: str) -> int:
    """Read every entry of every ledger from each bookie that has it by the record; how many copies there were. No
    record names *left*."""
    count = 0
    async with inspecting(cluster.metadata_url) as inspector:
        for ledger_id, record in (await inspector.records_of(await inspector.ledger_ids())).items():
            assert record.metadata is not None, record.problem
            assert left not in record.metadata.bookies()
            last_entry_id, silent = await inspector.last_entry(ledger_id, record.metadata)
            assert not silent
            for entry_id in range(last_entry_id + 1):
                found = await inspector.copies(ledger_id, entry_id, record.metadata)
                assert len({one.bookie_id for one in found}) == record.metadata.write_quorum
                assert {one.verdict for one in found} == {"good"}, f"ledger {ledger_id} entry {entry_id}: {found}"
                count += len(found)
    return count


def test_a_bookie_is_drained_while_a_producer_writes_and_is_removed(tmp_path: Path) -> None:
    with cluster_of(tmp_path / "cluster", bookies=4, brokers=1) as cluster:
        admin = AdminClient(cluster.admin_urls)
        prepare(admin)
        admin.create_topic(TOPIC, 1)
        with Load(cluster.service_url, TOPIC) as load:
            load.wait_for(2_000)
            leaving = bookies_of(cluster, f"{TOPIC}-partition-0")[0]
            member = cluster.member(leaving)
            bookie_id = next(
                one["bookie_id"] for one in bookies(cluster, "list")[1] if one["bookie_id"].endswith(f":{member.port}")
            )
            code, refused = bookies(cluster, "remove", bookie_id, "--yes")
            assert (code, "only a drained one can be removed" in refused["refused"]) == (1, True)
            assert refused["ledgers"]
            code, told = bookies(cluster, "drain", bookie_id, "--why", "old disks", "--wait", "--timeout", "240")
            assert (code, told["state"], told["reasons"]) == (0, "drained", [])
            load.wait_for(2_000)
            assert leaving not in bookies_of(cluster, f"{TOPIC}-partition-0")
            cluster.kill(leaving)
            load.wait_for(2_000)
            assert bookies(cluster, "remove", bookie_id, "--yes") == (0, {"bookie": bookie_id, "removed": True})
            load.finish()
            load.check()
        assert bookie_id not in [one["bookie_id"] for one in bookies(cluster, "list")[1]]
        assert asyncio.run(copies(cluster, bookie_id)) > 0
