"""Recorded requests to Apache's bookies, from its clients and made by hand, get the same answers from ours.

Answers may come in another order. Left out of the comparison: times, disk sizes; and ours answers the list of
entries, where Apache's storage never does.
"""

import asyncio
import contextlib
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from bookie.bookie import Bookie
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import master_key
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from tests.support.bookie_vectors import VECTORS, decoded, segments, streams
from tests.support.serving import BookieMachines, HurriedClock, Wire

# Sessions that begin with what an earlier one left.
AFTER = {
    "bkraw-v3-then-v2": ["bkraw-v3-all"],
    "bkraw-v2-version-0": ["bkraw-v2-errors"],
    "bkraw-v2-version-3": ["bkraw-v2-errors"],
}
NAMES = sorted(
    path.name.removesuffix(".jsonl") for path in (VECTORS / "wire").glob("bk*.jsonl") if "decoded" not in path.name
)


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_session_gets_the_recorded_answers(name: str) -> None:
    world = BookieMachines(HurriedClock())
    ports = sorted({row.get("port", 3181) for row in segments(name)})
    async with contextlib.AsyncExitStack() as stack:
        bookies = {}
        for port in ports:
            bookies[port] = await stack.enter_async_context(
                world.serving(
                    bookie_id=f"b{port}", journal_directories=(f"/{port}/j",), ledger_directories=(f"/{port}/l",)
                )
            )
            await preload(bookies[port], name)
        for earlier in AFTER.get(name, []):
            await replay(bookies, earlier)
        await replay(bookies, name)


async def preload(bookie: Bookie, name: str) -> None:
    """Add the entries that the session reads but did not add."""
    added = {
        (row["entry"]["ledgerId"], row["entry"]["entryId"])
        for row in decoded(name)
        if row["dir"] == "c2s" and row.get("opcode") == "ADDENTRY"
    }
    if added or name in AFTER:
        return
    wire = await Wire.connect(bookie)
    for (_, direction), data in streams(name).items():
        for frame in FrameSplitter().feed(data) if direction == "s2c" else ():
            if not v3.is_v3(frame) and frame[1] == v2.READ_ENTRY:
                _, rc, _, _, body, _ = v2.parse_response(frame)
                if rc == 0 and isinstance(body, memoryview):
                    assert await wire.add(bytes(body), key=master_key(b"secret")) == 0
    wire.close()


async def replay(bookies: dict[int, Bookie], name: str) -> None:
    wires: dict[int, Wire] = {}
    recorded: dict[int, list[bytes]] = {}
    splitters: dict[int, FrameSplitter] = {}
    for row in segments(name):
        number = row["conn"]
        if number not in wires:
            wires[number] = await Wire.connect(bookies[row.get("port", 3181)])
            recorded[number], splitters[number] = [], FrameSplitter()
        wire = wires[number]
        if row["dir"] == "c2s":
            if row.get("end"):
                wire.close()
            else:
                wire.send(row["data"])
                await asyncio.sleep(0.002)
        elif row.get("end"):
            if "reset" in row.get("note", ""):
                assert await wire.closed(), "the recorded connection was closed by the bookie"
        else:
            recorded[number] += [bytes(frame) for frame in splitters[number].feed(row["data"])]
            await wire.until(len(recorded[number]))
    for number, wire in wires.items():
        wire.close()
        found = [comparable(frame) for frame in wire.frames]
        expected = [comparable(frame) for frame in recorded[number]]
        for answer in expected:
            assert answer in found
        extra = [answer for answer in found if answer not in expected]
        assert all(isinstance(e, dict) and "getListOfEntriesOfLedgerResponse" in e for e in extra)


def comparable(frame: bytes) -> Any:
    if not v3.is_v3(memoryview(frame)):
        return frame
    values = MessageToDict(v3.parse_response(frame))
    values.get("readResponse", {}).pop("lacUpdateTimestamp", None)
    for size in ("totalDiskCapacity", "freeDiskSpace"):
        if size in values.get("getBookieInfoResponse", {}):
            values["getBookieInfoResponse"][size] = "some"
    return values
