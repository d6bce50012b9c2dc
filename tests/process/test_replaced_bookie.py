"""A bookie is lost with its disks, and a new one takes its name, as the operator's page says."""

import asyncio
import contextlib
import re
import shutil
from pathlib import Path

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import ClusterError, reserved_ports
from tests.support.copies import REPAIR_S, copies_of, good_copies
from tests.support.pages import blocks_of
from tests.support.processes import Load, cluster_of, prepare, until
from tests.support.shell import Shell
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

PAGE = Path(__file__).parents[2] / "docs" / "bookie-operations.md"
TOPIC = "persistent://public/default/load"
IDLE = "persistent://public/default/idle"
"""Nobody writes to it after the bookie is lost."""

LEDGERS = 30
COPIES_MIN = LEDGERS * 13
"""Of 20 entries, two copies each in turn on three bookies, a bookie has 13 or 14."""


@pytest.mark.parametrize(
    "auto_recovery",
    [
        pytest.param(
            False, id="alone", marks=pytest.mark.long("tests/crash/test_replaced_disk.py does it in a process")
        ),
        pytest.param(True, id="beside auto-recovery", marks=pytest.mark.long("the same cluster with one setting more")),
    ],
)
async def test_a_new_bookie_takes_the_name_of_a_lost_one_and_copies_back_what_it_had(
    tmp_path: Path, auto_recovery: bool
) -> None:
    """At another address. There is no fourth bookie: nobody else can take the copies. Auto-recovery may copy to the
    new bookie before its own check gets there."""
    blocks = [one.text for one in blocks_of(PAGE.read_text()) if one.section == "Replacing a bookie"]
    name, integrity, looks = blocks[:3]
    assert (name, integrity) == ("bookieId=bookie-1\n", "dataIntegrityChecking=true\n")
    unload, status, metrics = looks.splitlines()
    metrics, _, found_by = metrics.partition(" | grep ^")

    def named(member: str) -> str:
        return name.replace("bookie-1", member)

    with (
        cluster_of(
            tmp_path / "cluster", bookies=3, brokers=1, auto_recovery=auto_recovery, bookie_settings=named
        ) as cluster,
        contextlib.closing(reserved_ports()) as ports,
    ):
        shell = Shell(cluster)
        lost = cluster.member("bookie-1")
        address = ("--admin-url", f"http://127.0.0.1:{lost.web_port}")
        admin = AdminClient(cluster.admin_urls)
        prepare(admin)
        admin.create_topic(TOPIC, 4)
        admin.create_topic(IDLE, 6)
        async with copies_of(cluster.metadata_url) as client:
            ledgers = await client.written(LEDGERS, 20)
            with Load(cluster.service_url, IDLE, name="idle", first=Load.MESSAGES_MAX) as idle:
                await asyncio.to_thread(idle.wait_for, 200)
                await asyncio.to_thread(idle.finish)
            with Load(cluster.service_url, TOPIC) as load:
                await asyncio.to_thread(load.wait_for, 3_000)
                await asyncio.to_thread(cluster.kill, "bookie-1")
                place = cluster.directory / "bookie-1"
                for directory in ("journal", "ledgers"):
                    shutil.rmtree(place / directory)
                await asyncio.to_thread(load.wait_for, 1_000)
                config = place / "bookie.conf"
                config.write_text(config.read_text().replace(f"bookiePort={lost.port}", f"bookiePort={next(ports)}"))
                with pytest.raises(ClusterError) as refused:
                    await asyncio.to_thread(cluster.start, "bookie-1")
                for text in (
                    "bookie bookie-1 does not start, its directories do not belong to it",
                    f"{place / 'journal' / 'current'} has no cookie, but the bookie is known",
                    f"{place / 'ledgers' / 'current'} has no cookie, but the bookie is known",
                    "or set dataIntegrityChecking=true, so that it copies back what it lost",
                ):
                    assert text in str(refused.value)
                config.write_text(config.read_text() + integrity)
                await asyncio.to_thread(cluster.start, "bookie-1")

                shell.run(*unload.split()[1:])

                def is_done() -> bool:
                    return "still to be checked" not in shell.run(*status.split()[1:], *address)

                await asyncio.to_thread(until, is_done, "every copy is checked", REPAIR_S)
                told = shell.run(*metrics.split()[1:], *address)
                counts = dict(re.findall(rf"^({found_by}\w+)\S* (\S+)$", told, re.MULTILINE))
                copied = float(counts["magnetar_bookie_integrity_copied_entries_total"])
                assert auto_recovery or copied >= COPIES_MIN
                assert float(counts["magnetar_bookie_integrity_lost_entries_total"]) == 0
                await asyncio.to_thread(load.wait_for, 1_000)
                await asyncio.to_thread(load.finish)
            await client.until_whole(ledgers)
            found = await good_copies(cluster.metadata_url)
            assert set(found) == {"bookie-1", "bookie-2", "bookie-3"}
            assert found["bookie-1"] >= COPIES_MIN
            for one in (load, idle):
                await asyncio.to_thread(one.check)
