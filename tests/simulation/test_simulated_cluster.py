"""`magnetar.testing.simulated_cluster`: tests of applications under virtual time."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

import magnetar
import magnetar.testing
from magnetar.testing.simulated.under_test import SimulatedClusterUnderTest
from tests.support.pages import blocks_of

ROOT: Final = Path(__file__).parent.parent.parent


async def orders(cluster: SimulatedClusterUnderTest, count: int, *, trouble_s: float = 0.0) -> list[bytes]:
    """An application that sends *count* messages and receives them; what it received, in order."""
    received: list[bytes] = []
    async with magnetar.AsyncClient(cluster.grpc_url) as client:
        producer = client.producer("orders")
        async with client.consumer("orders", "billing", from_earliest=True) as consumer:
            troubles = asyncio.create_task(cluster.trouble(trouble_s)) if trouble_s else None
            for number in range(count):
                await producer.send(b"%d" % number)
                await asyncio.sleep(1.0)
            if troubles is not None:
                await troubles
            while len(set(received)) < count:
                message = await consumer.receive(timeout_s=60)
                received.append(message.payload)
                consumer.ack(message)
    return received


def test_an_application_runs_for_minutes_in_less_than_seconds() -> None:
    cluster = magnetar.testing.simulated_cluster(seed=1)
    threads = threading.active_count()
    assert cluster.run(orders(cluster, 100)) == [b"%d" % number for number in range(100)]
    assert threading.active_count() == threads, "nothing runs beside it"


def test_a_seed_is_the_same_run_however_busy_the_real_machine_is() -> None:
    """Brokers report what they use: it is not what the real process uses."""

    def run() -> tuple[int, int]:
        cluster = magnetar.testing.simulated_cluster(seed=1)
        cluster.run(orders(cluster, 15))
        return cluster._loop.calls, cluster._cluster.server.requests

    calm = run()
    times = (os.times_result((used_s, 0.0, 0.0, 0.0, 0.0)) for used_s in itertools.count(step=40.0))
    with mock.patch.object(os, "times", side_effect=times):
        assert run() == calm


def test_a_broker_is_killed_and_another_one_goes_on() -> None:
    cluster = magnetar.testing.simulated_cluster(seed=2)

    async def application() -> tuple[str, str | None]:
        async with magnetar.AsyncClient(cluster.grpc_url) as client:
            producer = client.producer("orders")
            await producer.send(b"before")
            dead = cluster.kill(serving="orders")
            await producer.send(b"after")
            return dead, cluster.owner("orders")

    dead, owner = cluster.run(application())
    assert owner not in (None, dead)
    assert cluster.story[0].endswith(f"s: {dead} is killed")


def test_a_broker_that_is_cut_off_is_replaced() -> None:
    cluster = magnetar.testing.simulated_cluster(seed=3)

    async def application() -> list[bytes]:
        async with magnetar.AsyncClient(cluster.grpc_url) as client:
            producer = client.producer("orders")
            await producer.send(b"before")
            alone = cluster.owner("orders")
            assert alone is not None
            for name in ("metadata", "application", *cluster.bookies):
                cluster.cut(alone, name)
                cluster.cut(name, alone)
            await producer.send(b"after")
            assert asyncio.get_running_loop().time() > 1.0, "another broker has taken the topic over"
            async with client.reader("orders") as reader:
                return [(await reader.receive(timeout_s=10)).payload for _ in range(2)]

    assert cluster.run(application()) == [b"before", b"after"]


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_the_same_run_each_time(seed: int) -> None:
    runs = []
    for _ in range(2):
        cluster = magnetar.testing.simulated_cluster(seed=seed)
        runs.append((cluster.run(orders(cluster, 20, trouble_s=30)), cluster.story))
    assert runs[0] == runs[1]
    assert runs[0][1], "something happened"


def test_a_seed_is_the_same_run_whatever_the_hashes_of_texts_are() -> None:
    code = (
        "import magnetar.testing\n"
        "from tests.simulation.test_simulated_cluster import orders\n"
        "cluster = magnetar.testing.simulated_cluster(seed=5)\n"
        "print(cluster.run(orders(cluster, 20, trouble_s=30)), cluster.story)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True,
            env={**os.environ, "PYTHONHASHSEED": hashes},
        ).stdout
        for hashes in ("0", "1", "77")
    }  # fmt: skip
    assert len(told) == 1


def test_what_the_application_raises_comes_out_and_a_cluster_runs_once() -> None:
    cluster = magnetar.testing.simulated_cluster()

    async def fails() -> None:
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError, match="planted"):
        cluster.run(fails())
    waiting = fails()
    with pytest.raises(AssertionError, match="runs once"):
        cluster.run(waiting)
    waiting.close()


def test_a_project_with_a_package_of_our_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").touch()
    code = (
        "import magnetar.testing as testing\n"
        "try: testing.simulated_cluster()\n"
        "except testing.ServerFailed as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert f"and here {tmp_path / 'broker'} has that name" in said


def test_the_error_of_which_the_page_speaks_is_found() -> None:
    (block,) = [
        block.text for block in blocks_of((ROOT / "docs/testing.md").read_text()) if "simulated_cluster(" in block.text
    ]
    right: dict[str, Any] = {}
    exec(block, right)
    right["test_each_order_is_billed_once"]()
    line = "            if message.payload not in invoices:\n"
    assert line in block
    wrong: dict[str, Any] = {}
    exec(block.replace(line, "            if True:\n"), wrong)
    with pytest.raises(AssertionError, match="is killed for"):
        wrong["test_each_order_is_billed_once"]()


def test_a_machine_that_is_not_there_is_named_with_those_that_are() -> None:
    cluster = magnetar.testing.simulated_cluster(bookies=1, brokers=1)

    async def application() -> None:
        cluster.kill("broker-9")

    with pytest.raises(ValueError, match="there is no broker-9; there are bookie-1, broker-1"):
        cluster.run(application())


def test_retries_wait_for_virtual_seconds() -> None:
    cluster = magnetar.testing.simulated_cluster()
    retry = magnetar.Retry(max=1, backoff=100, dead_letter_subscription="inspection")

    async def application() -> float:
        async with magnetar.AsyncClient(cluster.grpc_url) as client:
            consumer = await client.consumer("t", "s", type="shared", retry=retry)
            await client.producer("t").send(b"x")
            began_s = asyncio.get_running_loop().time()
            for _ in range(2):
                await consumer.nack(await consumer.receive(timeout_s=200))
            waited_s = asyncio.get_running_loop().time() - began_s
            async with client.consumer("t-s-DLQ", "inspection") as inspection:
                assert (await inspection.receive(timeout_s=10)).payload == b"x"
            return waited_s

    assert 90 < cluster.run(application()) < 110, "the machines' clocks differ by some seconds"


def test_an_application_that_fails_leaves_no_defects_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = magnetar.testing.simulated_cluster(bookies=1, brokers=1)
    clients = list[magnetar.AsyncClient]()

    async def application() -> None:
        clients.append(magnetar.AsyncClient(cluster.grpc_url))
        await clients[0].producer("t").send(b"x")
        raise KeyError("of the application")

    with pytest.raises(KeyError, match="of the application"):
        cluster.run(application())
    assert not [one.message for one in caplog.records if one.name == "magnetar.client" and one.levelname == "ERROR"]
