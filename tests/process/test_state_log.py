"""The dictionary of docs/state-log.md as three real processes, with kill -9 of leaders and bookies."""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from magnetar.processes.cluster import Cluster
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.member import open_member
from managed_ledger.state_log.state_log import StateLog
from tests.support.pages import blocks_of
from tests.support.processes import PATIENCE_S, until
from tests.support.state_log_world import Dictionary as Words
from tests.support.state_log_world import setting
from tests.support.waiting import eventually
from tests.support.zookeeper import why_not

pytestmark = [pytest.mark.process, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

SESSION_S: Final = 4.0
PAGE: Final = Path(__file__).parents[2] / "docs" / "state-log.md"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Dictionary:
    """Three processes of the page's example."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        (program,) = (block.text for block in blocks_of(PAGE.read_text()) if block.file == "dictionary.py")
        usual = 'StateLogConfig(root="/dictionary"), '
        assert usual in program
        # Others have had a dictionary in this cluster before; and a shorter session lets the next leader begin earlier.
        own = f'StateLogConfig(root="/{folder.name}"), session_timeout_s={SESSION_S}, '
        (folder / "dictionary.py").write_text(program.replace(usual, own))
        self.metadata = cluster.metadata_url
        self.ports = [free_port() for _ in range(3)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, port: int) -> None:
        log = (self.folder / f"{port}.log").open("ab")
        self.processes[port] = subprocess.Popen(
            [sys.executable, "dictionary.py", f"127.0.0.1:{port}", f"data-{port}", self.metadata],
            cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def kill(self, port: int) -> None:
        self.processes[port].send_signal(signal.SIGKILL)
        self.processes[port].wait()
        del self.processes[port]

    def ask(self, port: int, method: str, word: str, text: str = "") -> tuple[int, str]:
        """Status and text; 0 for a node that does not answer, 307 with the address of another one."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, f"/{word}", text)
            answer = connection.getresponse()
            found = answer.read().decode().strip()
            return answer.status, answer.getheader("Location") or found
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def leader(self) -> int:
        """The port of the node that gives linearizable reads."""
        found: list[int] = []

        def one() -> bool:
            found[:] = [port for port in self.processes if self.ask(port, "GET", "none")[0] == 200]
            return bool(found)

        until(one, "a node leads", 2 * PATIENCE_S)
        return found[0]

    def put(self, word: str, text: str) -> None:
        """Until a leader has acknowledged it; setting a word again does no harm."""
        deadline = time.monotonic() + 3 * PATIENCE_S
        while all(self.ask(port, "PUT", word, text)[0] != 200 for port in list(self.processes)):
            assert time.monotonic() < deadline, "nobody takes edits"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))


@pytest.mark.long(
    "leaders and bookies are killed and waited for; `tests/simulation/test_state_log_sim.py` has the rules"
)
def test_leaders_and_bookies_that_are_killed_lose_nothing_that_was_acknowledged(
    tmp_path: Path, cluster: Cluster
) -> None:
    words = Dictionary(tmp_path, cluster)
    try:
        for port in words.ports:
            words.start(port)
        written: dict[str, str] = {}
        for round_ in range(2):
            for number in range(20):
                word = f"w{number % 7}-{round_}"
                words.put(word, f"{round_}.{number}")
                written[word] = f"{round_}.{number}"
            if round_ == 1:  # followers tail on, and the leader's ledger gets another bookie (R-S10)
                cluster.kill("bookie-1")
                words.put("beside", "a bookie less")
                cluster.start("bookie-1")
            led = words.leader()
            words.kill(led)
            now = words.leader()
            assert now != led
            for word, text in written.items():
                status, found = words.ask(now, "GET", word)
                assert (status, found) == (200, text)
            words.start(led)
        for port in words.ports:
            until(lambda port=port: words.ask(port, "GET", "none")[0] in (200, 307), "it is back")  # type: ignore[misc]
    except BaseException:
        print(words.logs())
        raise
    finally:
        words.stop()


@pytest.mark.long("three processes, and two sessions that end")
def test_a_leader_that_slept_while_another_one_took_over_writes_nothing(tmp_path: Path, cluster: Cluster) -> None:
    """R-S1 with real processes: SIGSTOP, a takeover, SIGCONT."""
    words = Dictionary(tmp_path, cluster)
    try:
        for port in words.ports:
            words.start(port)
        words.put("x", "before")
        led = words.leader()
        os.kill(words.processes[led].pid, signal.SIGSTOP)
        asleep = words.processes.pop(led)
        try:
            words.put("x", "after")
            now = words.leader()
        finally:
            asleep.send_signal(signal.SIGCONT)
            words.processes[led] = asleep
        status, _ = words.ask(led, "PUT", "x", "by the former leader")
        assert status != 200
        assert words.ask(now, "GET", "x") == (200, "after")
        until(lambda: words.ask(led, "GET", "x") == (307, f"http://127.0.0.1:{now}/x"), "it follows")
    except BaseException:
        print(words.logs())
        raise
    finally:
        words.stop()


async def test_a_newcomer_gets_a_snapshot_over_http_when_the_ledgers_are_gone(tmp_path: Path, cluster: Cluster) -> None:
    """Members in this process; ZooKeeper and bookies are real."""
    config = StateLogConfig(
        root="/words", ledger_edits=10, snapshot_edits=1_000, retry_s=0.1, poll_s=0.01, poll_idle_s=0.05
    )

    def member(name: str) -> tuple[Words, AbstractAsyncContextManager[StateLog]]:
        machine = Words()
        opened = open_member(
            machine,
            name,
            tmp_path / name,
            config,
            metadata=cluster.metadata_url,
            secret="ours",
            session_timeout_s=SESSION_S,
        )
        return machine, opened

    (first, a), (second, b), (late, c) = member("a"), member("b"), member("c")
    async with a as log_a, b as log_b:
        await eventually(lambda: log_a.is_leader or log_b.is_leader)
        leader = log_a if log_a.is_leader else log_b
        for _ in range(3):
            await asyncio.gather(*(leader.propose(setting(f"k{number % 7}", number)) for number in range(20)))
            for log in (log_a, log_b):
                await log.reach(leader.number)
                await log.take_snapshot()
        await leader.truncate()
        listed = leader.listed
        assert listed is not None
        assert listed.ledgers[0].first_number > 20
        assert listed.leaving == ()
        async with c as log_c:
            await log_c.reach(60)
            assert log_c.state_hash() == leader.state_hash()
            assert late.history == first.history == second.history
            await leader.propose(setting("after", 1))
            await log_c.reach(61)
        await leader.read_barrier()
