"""A real bookie process is killed while it is written to; what it acknowledged is there when it comes back."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from tests.support.bookie_disks import KEY, stored_entry

PROGRAM = """
import asyncio, sys
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles

async def main(directory):
    clock = LoopClock()
    store = await open_store("rocksdb:" + directory + "/metadata", clock)
    await initialise_cluster(store)
    config = BookieConfig(
        port=0, listen_address="127.0.0.1", bookie_id="killed", reserve_mib=0, write_cache_mib=2,
        journal_directories=(directory + "/journal",), ledger_directories=(directory + "/ledgers",),
    )
    bookie = Bookie(config, store, clock, OsFiles())
    await bookie.start()
    print(bookie.address[1], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def bookie_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.process
async def test_what_a_killed_process_acknowledged_is_there_afterwards(tmp_path: Path) -> None:
    entries = [stored_entry(1 + n % 3, n, b"%d" % n * 300) for n in range(20_000)]
    acknowledged: list[tuple[int, int]] = []
    with bookie_process(tmp_path) as (process, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            for entry in entries:
                writer.write(v2.add_request_head(0, KEY, len(entry)) + entry)
                await writer.drain()

        sending = asyncio.create_task(send())
        splitter = FrameSplitter()
        while len(acknowledged) < 6_000:  # some of it is flushed by now, some not
            for frame in splitter.feed(await reader.read(65536)):
                _, rc, ledger_id, entry_id, _, _ = v2.parse_response(frame)
                assert rc == 0
                acknowledged.append((ledger_id, entry_id))
        process.send_signal(signal.SIGKILL)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
    with bookie_process(tmp_path) as (_, port), socket.create_connection(("127.0.0.1", port), 30) as wire:
        for first in range(0, len(acknowledged), 500):
            some = acknowledged[first : first + 500]
            wire.sendall(b"".join(v2.read_request(*key) for key in some))
            splitter = FrameSplitter()
            answers: dict[tuple[int, int], bytes] = {}
            while len(answers) < len(some):
                for frame in splitter.feed(wire.recv(1 << 20)):
                    _, rc, ledger_id, entry_id, body, _ = v2.parse_response(frame)
                    assert rc == 0
                    assert isinstance(body, memoryview)
                    answers[ledger_id, entry_id] = bytes(body)
            assert answers == {key: entries[key[1]] for key in some}


COLLECTING = """
import asyncio, sys
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import MIB
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from tests.support.bookie_disks import KEY, stored_entry
from tests.support.serving import Wire

LEDGERS, ENTRIES = 20, 60

async def main(directory, kept):
    clock = LoopClock()
    store = await open_store("rocksdb:" + directory + "/metadata", clock)
    await initialise_cluster(store)
    ledgers = LedgerStore(store)
    config = BookieConfig(
        port=0, listen_address="127.0.0.1", bookie_id="killed", reserve_mib=0, write_cache_mib=2,
        journal_directories=(directory + "/journal",), ledger_directories=(directory + "/ledgers",),
        log_bytes_max=6 * MIB, frame_bytes_max=2 * MIB, compaction_entries_s=2000, compaction_reserve_mib=0,
    )
    bookie = Bookie(config, store, clock, OsFiles())
    await bookie.start()
    print(bookie.address[1], flush=True)
    wire = await Wire.connect(bookie)
    # Behind what any life has begun, also if it was killed before it could say so.
    begun = [ledger_id async for ledger_id in ledgers.list()] + [int(kept) for kept in kept.split(",") if kept]
    generation = max(begun, default=0) // 100 + 1
    while True:
        # A fresh lot of ledgers, each with entries between those of the others; most of them are deleted at once.
        mine = range(generation * 100, generation * 100 + LEDGERS)
        await ledgers.advance(mine[-1])
        for ledger_id in mine:
            if ledger_id % 10 == 0:
                await ledgers.create_with_id(ledger_id, LedgerMetadata(
                    ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C,
                    segments=(Segment(0, ("killed",)),),
                ))
        answered = len(wire.frames)
        for entry_id in range(ENTRIES):
            for ledger_id in mine:
                entry = stored_entry(ledger_id, entry_id, b"%d/%d " % (ledger_id, entry_id) * 400)
                wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        await wire.until(answered + LEDGERS * ENTRIES, 60)
        assert all(v2.parse_response(memoryview(frame))[1] == 0 for frame in wire.frames)
        wire.frames.clear()
        for ledger_id in mine:
            if ledger_id % 10 == 0:
                print("kept", ledger_id, flush=True)
        bookie.parts.checkpointer.flush()
        for _ in range(3):
            bookie.parts.collector.trigger(force_major=True)
            await bookie.parts.collector.settled()
            status = bookie.parts.collector.status()
            assert status.failed is None, status.failed
            assert not status.damaged_logs, status.damaged_logs
        print("compacted", status.compacted_logs, flush=True)
        generation += 1

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.process
def test_what_lives_survives_kills_while_dead_ledgers_are_collected(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    kept: list[int] = []
    compacted = 0
    for life in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", COLLECTING, str(tmp_path), ",".join(map(str, kept))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            check_kept(port, kept)
            for line in process.stdout:
                what, number = line.split()
                if what == "kept":
                    kept.append(int(number))
                else:
                    compacted += int(number)
                # At another place in each life: between rounds, and while a round runs.
                if len(kept) % 2 == 0 and len(kept) >= 4 * (life + 1) + 2 * (life % 2):
                    time.sleep(0.01 * life)
                    break
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert compacted > 0
    with bookie_process(tmp_path) as (_, port):
        check_kept(port, kept)


def check_kept(port: int, kept: list[int]) -> None:
    """Every entry of the ledgers that were not deleted is there."""
    expected = {
        (ledger_id, n): stored_entry(ledger_id, n, b"%d/%d " % (ledger_id, n) * 400)
        for ledger_id in kept
        for n in range(60)
    }
    splitter = FrameSplitter()
    answers: dict[tuple[int, int], bytes] = {}
    with socket.create_connection(("127.0.0.1", port), 60) as wire:
        wire.sendall(b"".join(v2.read_request(*key) for key in expected))
        while len(answers) < len(expected):
            for frame in splitter.feed(wire.recv(1 << 20)):
                _, rc, ledger_id, entry_id, body, _ = v2.parse_response(frame)
                assert rc == 0, (ledger_id, entry_id, rc)
                assert isinstance(body, memoryview)
                answers[ledger_id, entry_id] = bytes(body)
    assert answers == expected
