"""A real bookie process is killed while it is written to; what it acknowledged is there when it comes back."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.bookkeeper.wire import codec_v2 as v2
from magnetar.bookkeeper.wire.framing import FrameSplitter
from tests.support.bookie_disks import KEY, stored_entry

PROGRAM = """
import asyncio, sys
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar.bookkeeper.metadata.ledger_store import initialise_cluster
from magnetar.bookkeeper.metadata.url import open_store
from magnetar.runtime.clock import LoopClock
from magnetar.runtime.files import OsFiles

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
