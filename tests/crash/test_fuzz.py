"""Damaged bytes, in frames of both protocols and in files of a bookie's disk, lead to a clear error and no other harm.

MAGNETAR_FUZZ_FRAMES   how many frames for each protocol (20,000 in `make crash`)
"""

import asyncio
import contextlib
import gc
import logging
import os
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from bookie.bookie import Bookie
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES
from magnetar_core.runtime.types import KIB, MIB, Corruption, MagnetarError
from tests.support import bookie_requests
from tests.support.bookie_disks import CODEC, KEY, Disk, stored_entry
from tests.support.crash_images import Life, crashed
from tests.support.damage import damaged
from tests.support.serving import BookieMachines, Wire

FRAMES = int(os.environ["MAGNETAR_FUZZ_FRAMES"])
SEED = os.environ["MAGNETAR_CRASH_SEED"]

# What the fuzz may leave in memory: interned strings, logs of pytest; the ledgers (with an entry, and with their rows
# in the index's memory twin) that changed ids made; and the disk, which is in memory: what is written, what is durable
GROWTH_MAX = 2 * MIB
LEDGER_BYTES = 2 * KIB

FRAME_MAX = 64 * KIB


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def good_frames(rng: random.Random, third: bool) -> bytes:
    """One well-formed request, with its length word."""
    ledger_id, entry_id = rng.choice([1, 2, 3, -1, 2**62]), rng.choice([0, 1, 5, -1, 2**62])
    entry = stored_entry(abs(ledger_id) % 3 + 1, rng.randrange(4), rng.randbytes(rng.randrange(60)))
    if not third:
        return rng.choice(
            [
                v2.add_request_head(rng.choice([0, 1, 2, 4]), KEY, len(entry)) + entry,
                v2.read_request(ledger_id, entry_id),
                v2.read_request(ledger_id, entry_id, v2.FLAG_DO_FENCING, KEY),
                v2.batch_read_request(ledger_id, entry_id, 7, rng.randrange(-2, 5), rng.choice([0, 100, 2**60])),
                v2.auth_frame(b""),
            ]
        )
    return rng.choice(
        [
            bookie_requests.add_request(1, ledger_id, entry_id, KEY, entry),
            bookie_requests.add_request(1, 1, 0, b"", entry, write_flags=v3.DEFERRED_SYNC),
            v3.read_request(2, ledger_id, entry_id),
            v3.read_request(2, 1, -1, previous_lac=0, timeout_ms=5, piggyback=True),
            bookie_requests.write_lac_request(3, 1, 0, KEY, rng.randbytes(rng.randrange(40))),
            bookie_requests.read_lac_request(4, ledger_id),
            bookie_requests.force_ledger_request(5, ledger_id),
            v3.list_of_entries_request(6, ledger_id),
            v3.bookie_info_request(7),
            v3.start_tls_request(8),
        ]
    )


def damaged_frame(frame: bytes, rng: random.Random) -> bytes:
    """*frame* with an error in it; the length word is mostly right, so that the bookie reads the rest."""
    body = damaged(rng, frame[4:], (0, 1, 1, 2, 8))
    size = len(body)
    if rng.random() < 0.05:
        size = rng.choice([0, 1, size + 1, max(size - 1, 0), FRAME_MAX, FRAME_MAX + 1, 2**31 - 1, 2**32 - 1])
    return size.to_bytes(4) + body


@pytest.mark.parametrize("third", [False, True], ids=["v2", "v3"])
async def test_malformed_frames_end_their_connection_and_no_more(third: bool) -> None:
    rng = random.Random(f"{SEED} {third}")
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    world = BookieMachines()
    async with world.serving(frame_bytes_max=FRAME_MAX) as bookie:
        healthy = await Wire.connect(bookie)
        kept = stored_entry(1000, 0, b"kept")
        assert await healthy.add(kept) == 0
        await fuzz(bookie, rng, third, FRAMES // 4)
        known, written = len(list(bookie.server.rules.ledgers)), disk_bytes(world)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        await fuzz(bookie, rng, third, FRAMES)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        server = bookie.server
        made, on_disk = len(list(server.rules.ledgers)) - known, disk_bytes(world) - written
        print(f"{after - before} bytes more, {on_disk} of them on the disk, {made} ledgers made")
        assert after - before < GROWTH_MAX + 2 * on_disk + made * LEDGER_BYTES
        assert not unhandled, unhandled[:3]
        assert bookie.failure is None
        assert await healthy.read(1000, 0) == kept
        assert (server.adds_in_flight, server.reads_in_flight, len(server.connections)) == (0, 0, 1)
        assert server.counters.malformed > FRAMES // 200
        assert await (await Wire.connect(bookie)).add(stored_entry(1001, 0)) == 0
    # Requests that were accepted are in the journal, and the next bookie can read them back.
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1000, 0) == kept


def disk_bytes(world: BookieMachines) -> int:
    return sum(len(inode.cached) for inode in world.files._entries.values())


async def fuzz(bookie: Bookie, rng: random.Random, third: bool, count: int) -> None:
    sent = 0
    while sent < count:
        wire = await Wire.connect(bookie)
        if third:
            wire.send(v3.bookie_info_request(1))
        chunk = [damaged_frame(good_frames(rng, third), rng) for _ in range(rng.randrange(1, 12))]
        sent += len(chunk)
        data = b"".join(chunk)
        # The bookie may close at any moment, so any of this may fail; asyncio and uvloop say it differently.
        with contextlib.suppress(OSError, RuntimeError):
            for at in range(0, len(data), size := rng.choice([1 << 20, 1 << 20, 37])):
                wire.send(data[at : at + size])
                if size == 37:
                    await asyncio.sleep(0)
            wire.writer.write_eof()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await wire._reader.read(65536):
                    pass
        wire.close()
    async with asyncio.timeout(10):
        while len(bookie.server.connections) > 1 or bookie.server.adds_in_flight:
            await asyncio.sleep(0.005)


async def test_a_frame_that_is_announced_and_never_sent_costs_nothing() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        wires = [await Wire.connect(bookie) for _ in range(50)]
        tracemalloc.start()
        for wire in wires:
            wire.send(v2.read_request(1, 0), MAX_FRAME_BYTES.to_bytes(4))
        for wire in wires:
            await wire.next()  # so what came in the same piece has been looked at, too
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 8 * MIB < 50 * MAX_FRAME_BYTES
        for wire in wires:
            wire.close()


# -------------------------------------------------------------------------------------------------- files


def lived() -> Disk:
    disk = Disk()
    life = Life(disk)
    for entry_id in range(12):
        life.add([stored_entry(n, entry_id, b"p" * 300) for n in (1, 2)], lambda taken, refusal: None)
        life.settle_journals()
        if entry_id == 6:
            life.flush()
    life.fence(3, lambda rc: None)
    life.settle_journals()
    return disk


def torn(content: bytearray, rng: random.Random) -> None:
    """A damaged file; some of the damage is worse than a crash can do."""
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(content) + 1)
        kind = rng.choice(["cut", "zeros", "junk", "insert", "double", "length"])
        if kind == "cut":
            del content[at:]
        elif kind == "zeros":
            content[at : at + 512] = bytes(len(content[at : at + 512]))
        elif kind == "junk":
            content[at : at + 100] = rng.randbytes(len(content[at : at + 100]))
        elif kind == "insert":
            content[at:at] = rng.randbytes(rng.randrange(1, 600))
        elif kind == "double":
            content[at:at] = content[: at + 700]
        else:
            content[at : at + 4] = rng.choice([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF00, 0, 17]).to_bytes(4)


@pytest.mark.parametrize("lot", range(2))
def test_torn_files_give_clear_errors_and_no_invented_entries(lot: int) -> None:
    rng = random.Random(f"{SEED} files {lot}")
    whole = lived()
    names = sorted(whole.files._entries)
    tracemalloc.start()
    errors: list[str] = []
    for _ in range(max(FRAMES // 10, 60)):
        disk = crashed(whole, rng, "lose all")
        path = rng.choice(names)
        torn(disk.files._entries[path].cached, rng)
        try:
            life = Life(disk)
        except (MagnetarError, OSError) as error:
            errors.append(str(error))
            continue
        for ledger in life.rules.ledgers:
            for entry_id in life.entry_ids(ledger.ledger_id):
                try:
                    entry = life.read(ledger.ledger_id, entry_id)
                    assert entry is not None
                    CODEC.open(entry, ledger.ledger_id, entry_id)
                except (Corruption, OSError):
                    continue
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB
    assert errors
    for text in errors:  # it names the file, or the ledger whose record it is
        assert "/j0/" in text or "/l0/" in text or "ledger" in text, text
