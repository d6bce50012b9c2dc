"""A real bookie process is killed again and again while it is written to, flushes, collects and compacts.

The directory is kept from round to round; what was acknowledged is remembered outside of the process.

    MAGNETAR_KILL_ROUNDS   how many kills in all (100 in `make crash`)
    MAGNETAR_CRASH_SEED    when they come, and what is written
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from tests.support.bookie_disks import KEY, stored_entry

ROUNDS = int(os.environ["MAGNETAR_KILL_ROUNDS"])
SEED = os.environ["MAGNETAR_CRASH_SEED"]
LOTS = 2

LEDGERS = 5  # in each round; as many again are not in the metadata store, so that they are collected
WINDOW = 400
ENTRIES_MAX = 3_000
EFENCED = 104

PROGRAM = """
import asyncio, sys
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.store import VersionConflict
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import MIB
from tests.support.bookie_world import ledger_metadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import Segment

async def main(directory, first, count):
    clock = LoopClock()
    store = await open_store("rocksdb:" + directory + "/metadata", clock)
    await initialise_cluster(store)
    ledgers = LedgerStore(store)
    for ledger_id in range(int(first), int(first) + int(count)):
        try:
            await ledgers.create_with_id(ledger_id, ledger_metadata(segments=(Segment(0, ("killed",)),)))
        except Exception as error:
            if "exist" not in str(error).lower() and not isinstance(error, VersionConflict):
                raise
    config = BookieConfig(
        port=0, listen_address="127.0.0.1", bookie_id="killed", reserve_mib=0, write_cache_mib=1,
        journal_directories=(directory + "/journal",), ledger_directories=(directory + "/ledgers",),
        frame_bytes_max=2 * MIB, log_bytes_max=3 * MIB, journal_file_mib_max=1, journal_preallocation_mib=0,
        flush_interval_ms=50, gc_wait_ms=100, gc_shrink_ledgers_min=1_000_000, compaction_reserve_mib=0,
        minor_interval_s=1, minor_threshold=0.8, major_interval_s=0,
    )
    bookie = Bookie(config, store, clock, OsFiles())
    await bookie.start()
    print(bookie.address[1], flush=True)
    while True:
        await asyncio.sleep(0.05)
        status = bookie.parts.collector.status()
        assert status.failed is None, status.failed
        assert not status.damaged_logs, status.damaged_logs
        with open(directory + "/counts", "w") as file:
            print(status.deleted_ledgers, status.removed_logs, status.compacted_logs, file=file)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def bookie_process(directory: Path, first: int) -> Iterator["subprocess.Popen[str]"]:
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), str(first), str(LEDGERS)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the bookie did not come up"
    return int(line)


class Oracle:
    """The requests that were sent, and the answers that came back."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.acknowledged: list[dict[tuple[int, int], int]] = []
        """For each round: (ledger, entry) → size of its payload."""
        self.fenced: set[int] = set()

    def entry(self, key: tuple[int, int], size: int) -> bytes:
        return stored_entry(*key, random.Random(f"{key[0]}/{key[1]}").randbytes(size))

    def load(self, process: "subprocess.Popen[str]", port: int, first: int) -> None:
        """Write until the process is killed in the middle of it."""
        rng = self.rng
        told: dict[tuple[int, int], int] = {}
        self.acknowledged.append(told)
        sizes: dict[tuple[int, int], int] = {}
        splitter = FrameSplitter()
        outstanding = entry_id = 0
        fence: int | None = None
        # Now and then late enough for a compaction.
        kill_at = time.monotonic() + (rng.uniform(1.0, 2.5) if rng.random() < 0.2 else rng.uniform(0.02, 1.0))
        with socket.create_connection(("127.0.0.1", port), 30) as wire:

            def take(data: bytes) -> None:
                nonlocal outstanding
                for frame in splitter.feed(data):
                    opcode, rc, ledger_id, answered, _, _ = v2.parse_response(frame)
                    if opcode == v2.ADD_ENTRY:
                        outstanding -= 1
                        if rc == EFENCED:
                            assert ledger_id == fence
                        else:
                            assert rc == 0, (rc, ledger_id, answered)
                            told[ledger_id, answered] = sizes[ledger_id, answered]
                    else:
                        self.fenced.add(ledger_id)

            while time.monotonic() < kill_at:
                if entry_id * 2 * LEDGERS < ENTRIES_MAX:
                    batch = []
                    for ledger_id in range(first, first + 2 * LEDGERS):
                        size = sizes[ledger_id, entry_id] = rng.choice([0, 100, 100, 1000, 3000])
                        entry = self.entry((ledger_id, entry_id), size)
                        batch.append(v2.add_request_head(0, KEY, len(entry)) + entry)
                        outstanding += 1
                    if fence is None and rng.random() < 0.02:
                        fence = rng.randrange(first, first + 2 * LEDGERS)
                        batch.append(v2.read_request(fence, v2.LAST_ENTRY, v2.FLAG_DO_FENCING, KEY))
                    wire.sendall(b"".join(batch))
                    entry_id += 1
                elif not outstanding:
                    time.sleep(0.01)
                while outstanding > (WINDOW if entry_id * 2 * LEDGERS < ENTRIES_MAX else 0):
                    take(wire.recv(1 << 16))
            process.send_signal(signal.SIGKILL)
            while True:  # answers that it sent before it died count
                try:
                    data = wire.recv(1 << 16)
                except ConnectionError:
                    break
                if not data:
                    break
                take(data)

    def check(self, port: int, rounds: Iterable[int], sample: int) -> None:
        """The ledgers of *rounds* whole, of the others *sample* entries; every fence."""
        whole = set(rounds)
        keys = [key for number in sorted(whole) if number >= 0 for key in self._kept(number)]
        others = [key for number in range(len(self.acknowledged)) if number not in whole for key in self._kept(number)]
        keys += self.rng.sample(others, min(sample, len(others)))
        sizes = {key: size for told in self.acknowledged for key, size in told.items()}
        with socket.create_connection(("127.0.0.1", port), 30) as wire:
            for at in range(0, len(keys), 500):
                some = keys[at : at + 500]
                wire.sendall(b"".join(v2.read_request(*key) for key in some))
                for _, rc, ledger_id, entry_id, body, _ in answers(wire, len(some)):
                    assert rc == 0, f"ledger {ledger_id} entry {entry_id} was acknowledged; read: {rc}"
                    assert isinstance(body, memoryview)
                    assert bytes(body) == self.entry((ledger_id, entry_id), sizes[ledger_id, entry_id])
            for ledger_id in sorted(self.fenced):
                entry = stored_entry(ledger_id, 1 << 40)
                wire.sendall(v2.add_request_head(0, KEY, len(entry)) + entry)
                ((_, rc, *_),) = answers(wire, 1)
                assert rc == EFENCED, f"ledger {ledger_id} was fenced; an add was answered with {rc}"

    def _kept(self, number: int) -> list[tuple[int, int]]:
        return [key for key in self.acknowledged[number] if key[0] < first_ledger(number) + LEDGERS]


def answers(wire: socket.socket, count: int) -> list[v2.V2Response]:
    splitter = FrameSplitter()
    found: list[v2.V2Response] = []
    while len(found) < count:
        data = wire.recv(1 << 20)
        assert data, "the bookie closed the connection"
        found += [v2.parse_response(memoryview(bytes(frame))) for frame in splitter.feed(data)]
    return found


def first_ledger(number: int) -> int:
    return 1 + number * 2 * LEDGERS


@pytest.mark.process
@pytest.mark.parametrize("lot", range(LOTS))
def test_a_bookie_that_is_killed_again_and_again_loses_nothing(tmp_path: Path, lot: int) -> None:
    rng = random.Random(f"{SEED} {lot}")
    oracle = Oracle(rng)
    rounds = -(-ROUNDS // LOTS)
    for number in range(rounds):
        if rng.random() < 0.2:  # one more kill, while it starts
            with bookie_process(tmp_path, first_ledger(number)):
                time.sleep(rng.uniform(0.3, 1.5))
        with bookie_process(tmp_path, first_ledger(number)) as process:
            port = port_of(process)
            oracle.check(port, [number - 1, number - 2], 300)
            oracle.load(process, port, first_ledger(number))
            process.wait()
    with bookie_process(tmp_path, first_ledger(rounds)) as process:
        oracle.check(port_of(process), range(rounds), 0)
    counts = (tmp_path / "counts").read_text()
    total = sum(map(len, oracle.acknowledged))
    print(f"{rounds} kills, {total} entries acknowledged, {len(oracle.fenced)} fences, last counts {counts}")
    assert total > rounds
