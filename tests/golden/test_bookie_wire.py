"""Conversations with Apache's bookies: frames read and made, and said again to our bookie (tests/vectors/wire/bk*)."""

import asyncio
import contextlib
import json
import struct
from collections import Counter
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from bookie.bookie import Bookie
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import master_key
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from tests.support import bookie_requests
from tests.support.golden import DECODES, ENCODES, REPLAYS, Report, b64, beside, golden, load, rows
from tests.support.serving import BookieMachines, HurriedClock, Wire

OPCODES: Final = {"ADDENTRY": 1, "READENTRY": 2, "AUTH": 3, "BATCH_READ_ENTRY": 7}
# Operations that the second protocol had once or has names for; a bookie hangs up on them.
GONE: Final = {"READ_LAC": 4, "WRITE_LAC": 5, "GET_BOOKIE_INFO": 6}

ENVELOPE: Final = struct.Struct(">qqqq")


# ------------------------------------------------------------------------------------- as told


def entry_told(data: bytes | memoryview) -> dict[str, Any]:
    """A stored entry in the words of the vectors."""
    ledger_id, entry_id, lac, length = ENVELOPE.unpack_from(data)
    return {
        "ledgerId": ledger_id, "entryId": entry_id, "lac": lac, "length": length,
        "digest_and_payload": bytes(data[ENVELOPE.size :]).hex(), "bytes": len(data),
    }  # fmt: skip


def auth_told(data: memoryview) -> dict[str, Any]:
    message = pb.AuthMessage.FromString(bytes(data))
    return {"plugin": message.authPluginName, "payload": message.payload.hex()}


def v2_request_told(frame: memoryview) -> dict[str, Any]:
    opcode, version, flags, ledger_id, entry_id, key, extra = v2.parse_request(frame)
    told: dict[str, Any] = {"protocol": "v2", "version": version, "opcode": opcode, "flags": flags}
    if key is not None:
        told["masterKey"] = key.hex()
    if opcode == v2.ADD_ENTRY:
        told["entry"] = entry_told(extra)
        assert (ledger_id, entry_id) == (told["entry"]["ledgerId"], told["entry"]["entryId"])
    elif opcode == v2.READ_ENTRY:
        told |= {"ledgerId": ledger_id, "entryId": entry_id}
    elif opcode == v2.BATCH_READ_ENTRY:
        request_id, count, size = extra
        told |= {"ledgerId": ledger_id, "startEntryId": entry_id, "requestId": request_id}
        told |= {"maxCount": count, "maxSize": size}
    else:
        told["auth"] = auth_told(extra)
    return told


def v2_response_told(frame: memoryview) -> dict[str, Any]:
    opcode, rc, ledger_id, entry_id, body, request_id = v2.parse_response(frame)
    told: dict[str, Any] = {"protocol": "v2", "version": frame[0], "opcode": opcode, "flags": 0}
    if opcode == v2.AUTH:
        assert isinstance(body, memoryview)
        return told | {"auth": auth_told(body)}
    told |= {"rc": rc, "ledgerId": ledger_id, "entryId": entry_id}
    if request_id is not None:
        told["requestId"] = request_id
        told["entries"] = [entry_told(entry) for entry in body or ()]  # type: ignore[arg-type]
    elif isinstance(body, memoryview):
        told["entry"] = entry_told(body)
    return told


# Bytes that are stored entries; all other bytes are told in hexadecimal digits.
_ENTRIES: Final = {"AddRequest.body", "ReadResponse.body", "ReadLacResponse.lastEntryBody"}


def v3_told(message: Message) -> dict[str, Any]:
    """A message with its numbers as protobuf's JSON has them, and its bytes as the vectors have them."""
    told: dict[str, Any] = MessageToDict(message)
    for field, value in message.ListFields():
        if field.message_type is not None:
            told[field.name] = v3_told(value)
        elif isinstance(value, bytes):
            name = f"{message.DESCRIPTOR.name}.{field.name}"
            told[field.name] = entry_told(value) if name in _ENTRIES else value.hex()
    return told


def told_by(row: dict[str, Any]) -> dict[str, Any]:
    """What the row says about the frame."""
    told = {key: value for key, value in row.items() if key not in ("conn", "port", "dir", "note")}
    if told.get("protocol") == "v2":
        told["opcode"] = OPCODES[told["opcode"]]
    return told


def streams(vector: str) -> dict[tuple[int, str], bytes]:
    joined: dict[tuple[int, str], bytes] = {}
    for row in rows(beside(vector, ".jsonl")):
        key = (row["conn"], row["dir"])
        joined[key] = joined.get(key, b"") + b64(row.get("data", ""))
    return joined


# --------------------------------------------------------------------------------------- frames


@golden(
    "wire/bk*.decoded.jsonl",
    beside_it=(".jsonl", ".json"),
    how={DECODES, ENCODES},
    compared="every field of every frame in both directions and protocols, what is no frame is refused; frames of the "
    "second protocol made again to the same bytes, of the third to an equal message; how many frames the story has",
)
def test_frames_of_bookies(report: Report) -> None:
    told = rows(report.vector)
    with report.row("the story"):
        check_story(report.vector, told)
    if "oversize" in report.vector:
        (data,) = (data for (_, direction), data in streams(report.vector).items() if direction == "c2s")
        with report.row("0"):
            refused(data)
        return
    for (connection, direction), data in streams(report.vector).items():
        numbered = [
            (number, row) for number, row in enumerate(told) if (row["conn"], row["dir"]) == (connection, direction)
        ]
        frames = FrameSplitter().feed(data)
        assert len(frames) == len(numbered)
        for frame, (number, row) in zip(frames, numbered, strict=True):
            with report.row(number):
                check_frame(frame, row)


def check_story(vector: str, told: list[dict[str, Any]]) -> None:
    story = load(beside(vector, ".json"))
    assert vector.endswith(story["expectedValues"])
    counted = Counter(f"{row['dir']} {row.get('opcode', row.get('header', {}).get('operation', '?'))}" for row in told)
    assert dict(counted) == story["frames"]


def refused(data: bytes) -> None:
    try:
        for frame in FrameSplitter().feed(data):
            v2.parse_request(frame)
    except MalformedFrame:
        return
    raise AssertionError("a frame that Apache's bookie hangs up on was read")


def check_frame(frame: memoryview, row: dict[str, Any]) -> None:
    whole = struct.pack(">I", len(frame)) + bytes(frame)
    if "undecodable" in row:
        assert bytes(frame).hex() == row["undecodable"]
        assert not v3.is_v3(frame)
        refused(whole)
    elif row["protocol"] == "v3":
        request = row["dir"] == "c2s"
        assert v3.is_v3(frame)
        message = v3.parse_request(frame) if request else v3.parse_response(frame)
        assert {"protocol": "v3", **v3_told(message)} == told_by(row)
        again = v3.frame_of(message)[4:]
        assert (v3.parse_request(again) if request else v3.parse_response(again)) == message
        if request:
            check_v3_request(message)  # type: ignore[arg-type]
    elif row["opcode"] not in OPCODES:
        assert frame[1] == GONE.get(row["opcode"], row["opcode"])
        refused(whole)
    elif row.get("note") == "fence without key":
        refused(whole)
    elif row["dir"] == "c2s":
        assert not v3.is_v3(frame)
        assert v2_request_told(frame) == told_by(row)
        check_v2_request(frame, whole)
    else:
        assert v2_response_told(frame) == told_by(row)
        check_v2_response(frame, whole)


def check_v2_request(frame: memoryview, whole: bytes) -> None:
    opcode, version, flags, ledger_id, entry_id, key, extra = v2.parse_request(frame)
    if version != v2.VERSION:
        return  # no client makes these any more
    if opcode == v2.ADD_ENTRY:
        assert key is not None
        made = v2.add_request_head(flags, key, len(extra)) + extra
    elif opcode == v2.READ_ENTRY:
        made = v2.read_request(ledger_id, entry_id, flags, key)
    elif opcode == v2.BATCH_READ_ENTRY:
        request_id, max_count, max_bytes = extra
        made = v2.batch_read_request(ledger_id, entry_id, request_id, max_count, max_bytes, flags, key)
    else:
        made = v2.auth_frame(bytes(extra))
    assert made == whole


def check_v2_response(frame: memoryview, whole: bytes) -> None:
    opcode, rc, ledger_id, entry_id, body, request_id = v2.parse_response(frame)
    version = frame[0]
    if opcode == v2.ADD_ENTRY:
        made = v2.add_response(rc, ledger_id, entry_id, version)
        assert v2.with_rc(v2.add_response(0, ledger_id, entry_id, version), rc) == whole
    elif opcode == v2.READ_ENTRY:
        entry = body if isinstance(body, memoryview) else b""
        made = v2.read_response(rc, ledger_id, entry_id, len(entry), version) + bytes(entry)
    elif opcode == v2.BATCH_READ_ENTRY:
        assert request_id is not None
        entries = body if isinstance(body, list) else []
        made = b"".join(v2.batch_read_response(rc, ledger_id, entry_id, request_id, entries, version))
    else:
        assert isinstance(body, memoryview)
        made = v2.auth_frame(bytes(body), version)
    assert made == whole


def check_v3_request(message: pb.Request) -> None:
    """Our client makes the same message for the same operation."""
    txn_id, priority = message.header.txnId, message.header.priority
    made = None
    if message.HasField("addRequest") and message.header.version == pb.ProtocolVersion.VERSION_THREE:
        add = message.addRequest
        made = bookie_requests.add_request(
            txn_id, add.ledgerId, add.entryId, add.masterKey, add.body,
            recovery=add.HasField("flag"), write_flags=add.writeFlags, priority=priority,
        )  # fmt: skip
    elif message.HasField("readRequest"):
        read = message.readRequest
        if read.flag == v3.FENCE_LEDGER and not read.masterKey:
            return
        made = v3.read_request(
            txn_id,
            read.ledgerId,
            read.entryId,
            fence_with=read.masterKey if read.flag == v3.FENCE_LEDGER else None,
            previous_lac=read.previousLAC if read.HasField("previousLAC") else None,
            timeout_ms=read.timeOut if read.HasField("timeOut") else None,
            piggyback=read.flag == v3.ENTRY_PIGGYBACK and read.HasField("flag"),
            priority=priority,
        )
    elif message.HasField("writeLacRequest"):
        write = message.writeLacRequest
        made = bookie_requests.write_lac_request(txn_id, write.ledgerId, write.lac, write.masterKey, write.body)
    elif message.HasField("readLacRequest"):
        made = bookie_requests.read_lac_request(txn_id, message.readLacRequest.ledgerId)
    elif message.HasField("forceLedgerRequest"):
        made = bookie_requests.force_ledger_request(txn_id, message.forceLedgerRequest.ledgerId)
    elif message.HasField("getListOfEntriesOfLedgerRequest"):
        made = v3.list_of_entries_request(txn_id, message.getListOfEntriesOfLedgerRequest.ledgerId)
    elif message.HasField("getBookieInfoRequest"):
        made = v3.bookie_info_request(txn_id, message.getBookieInfoRequest.requested)
    elif message.HasField("startTLSRequest"):
        made = v3.start_tls_request(txn_id)
    if made is not None:
        assert v3.parse_request(made[4:]) == message


# -------------------------------------------------------------------------------------- replays

# Sessions that begin with what an earlier one left.
AFTER: Final = {
    "bkraw-v3-then-v2": ["bkraw-v3-all"],
    "bkraw-v2-version-0": ["bkraw-v2-errors"],
    "bkraw-v2-version-3": ["bkraw-v2-errors"],
}


def file_of(name: str) -> str:
    return f"wire/{name}.jsonl"


class Said:
    """The answers on one connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.splitter = FrameSplitter()
        self.recorded: list[bytes] = []
        self.recorded_end: str | None = None


@golden(
    "wire/bk*.jsonl",
    without=("*.decoded.jsonl",),
    how={REPLAYS},
    compared="each answer of each connection, found by its request (transaction or ids, whatever the order), field by "
    "field without times and disk sizes; no other answers but lists of entries, which Apache's storage never gives; "
    "connections that the bookie closes are closed",
)
def test_sessions_with_bookies(report: Report) -> None:
    for number, said in sorted(
        asyncio.run(session(report.vector.removeprefix("wire/").removesuffix(".jsonl"))).items()
    ):
        found = [comparable(frame) for frame in said.wire.frames]
        for at, frame in enumerate(said.recorded):
            expected = comparable(frame)
            same = [answer for answer in found if key_of(answer) == key_of(expected)]
            with report.row(f"{number}.{at}"):
                assert same, f"not answered: {expected}"
                answer = expected if expected in same else same[0]
                found.remove(answer)
                assert answer == expected
        with report.row(f"{number} answers that Apache did not give"):
            assert [answer for answer in found if "getListOfEntriesOfLedgerResponse" not in answer] == []
        with report.row(f"{number} end"):
            assert not said.recorded_end or said.wire.is_closed, said.recorded_end


async def session(name: str) -> dict[int, Said]:
    """Send the clients' recorded frames to as many bookies as there were."""
    vector = file_of(name)
    world = BookieMachines(HurriedClock())
    async with contextlib.AsyncExitStack() as stack:
        bookies: dict[int, Bookie] = {}
        for port in sorted({row.get("port", 3181) for row in rows(vector)}):
            bookies[port] = await stack.enter_async_context(
                world.serving(
                    bookie_id=f"b{port}", journal_directories=(f"/{port}/j",), ledger_directories=(f"/{port}/l",)
                )
            )
            await preload(bookies[port], name)
        for earlier in AFTER.get(name, []):
            await say(bookies, file_of(earlier))
        return await say(bookies, vector)


async def preload(bookie: Bookie, name: str) -> None:
    """Put in the entries that are read and were not added in this session."""
    if name in AFTER or any(row.get("opcode") == "ADDENTRY" for row in rows(beside(file_of(name), ".decoded.jsonl"))):
        return
    wire = await Wire.connect(bookie)
    for (_, direction), data in streams(file_of(name)).items():
        for frame in FrameSplitter().feed(data) if direction == "s2c" else ():
            if not v3.is_v3(frame) and frame[1] == v2.READ_ENTRY:
                _, rc, _, _, body, _ = v2.parse_response(frame)
                if rc == 0 and isinstance(body, memoryview):
                    assert await wire.add(bytes(body), key=master_key(b"secret")) == 0
    wire.close()


async def say(bookies: dict[int, Bookie], vector: str) -> dict[int, Said]:
    """Each frame of a client once everything that had been answered before it is answered."""
    connections: dict[int, Said] = {}
    for row in rows(vector):
        number = row["conn"]
        if number not in connections:
            connections[number] = Said(await Wire.connect(bookies[row.get("port", 3181)]))
        said = connections[number]
        if row["dir"] == "c2s":
            if row.get("end"):
                said.wire.close()
            else:
                said.wire.send(b64(row["data"]))
                await asyncio.sleep(0.002)
        elif row.get("end"):
            if "reset" in row.get("note", ""):
                said.recorded_end = row["note"]
                await said.wire.closed()
        else:
            said.recorded += [bytes(frame) for frame in said.splitter.feed(b64(row.get("data", "")))]
            with contextlib.suppress(TimeoutError):
                await said.wire.until(len(said.recorded))
    for said in connections.values():
        said.wire.close()
    return connections


def comparable(frame: bytes) -> dict[str, Any]:
    """An answer in the form of the vectors, without the values that differ between bookies."""
    if not v3.is_v3(memoryview(frame)):
        return v2_response_told(memoryview(frame))
    told = v3_told(v3.parse_response(frame))
    told.get("readResponse", {}).pop("lacUpdateTimestamp", None)
    for size in ("totalDiskCapacity", "freeDiskSpace"):
        if size in told.get("getBookieInfoResponse", {}):
            told["getBookieInfoResponse"][size] = "some"
    return told


def key_of(answer: dict[str, Any]) -> str:
    """Which request it answers."""
    if "header" in answer:
        return json.dumps([answer["header"]["operation"], answer["header"]["txnId"]])
    return json.dumps([answer.get(name) for name in ("opcode", "ledgerId", "entryId", "requestId")])
