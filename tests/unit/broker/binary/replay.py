"""Replays a recorded conversation between a client and Apache's broker against this broker.

Client frames are sent as they were recorded, except that ledger ids become ours. Each recorded answer has to come,
field by field, in whatever order; what each broker makes up by itself (ids, names, addresses, texts) is left aside.
"""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, parse_frame, simple_frame
from magnetar_core.bookkeeper.wire.framing import FrameSplitter

VECTORS = Path(__file__).parents[3] / "vectors" / "wire"
TIMEOUT_S = 30.0
NONE = 2**64 - 1

# Fields that each broker fills in its own way.
OWN = {
    "message", "error_message", "feature_flags", "brokerServiceUrl", "highest_sequence_id", "address", "connectedSince",
    "producer_name", "consumerName", "topics", "topics_hash",
}  # fmt: skip
UNASKED = {wire.BaseCommand.PING, wire.BaseCommand.PONG}


def recorded_frames(name: str) -> dict[tuple[int, str], list[bytes]]:
    splitters: dict[tuple[int, str], FrameSplitter] = {}
    frames: dict[tuple[int, str], list[bytes]] = {}
    for line in (VECTORS / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "data" in row:
            key = (row["conn"], row["dir"])
            splitter = splitters.setdefault(key, FrameSplitter(2**30))
            found = splitter.feed(base64.b64decode(row["data"]))
            frames.setdefault(key, []).extend(bytes(frame) for frame in found)
    return frames


class Replay:
    """One conversation, maybe of several connections."""

    def __init__(self, name: str, port: int, ledger_ids: dict[int, int]) -> None:
        self._name = name
        self._port = port
        self._ours = ledger_ids  # recorded ledger id → ours
        self._peers: dict[int, _Peer] = {}

    async def run(self) -> None:
        frames = recorded_frames(self._name)
        at = dict.fromkeys(frames, 0)
        rows = [json.loads(line) for line in (VECTORS / f"{self._name}.decoded.jsonl").read_text().splitlines()]
        for number, row in enumerate(rows):
            if "conn" not in row:
                continue
            key = (row["conn"], row["dir"])
            if row.get("end"):
                if row["dir"] == "s2c" and "note" in row:
                    await self._peer(row["conn"]).expect_end()
                continue
            frame = frames[key][at[key]]
            at[key] += 1
            if row["dir"] == "c2s":
                peer = await self._open(row["conn"])
                peer.send(self._translated(frame))
            else:
                await self._expect(
                    self._peer(row["conn"]), frame, f"{self._name} row {number}: {json.dumps(row)[:300]}"
                )
        for peer in self._peers.values():
            await peer.close()
            assert not peer.unexpected, f"{self._name}: answers that Apache did not give: {peer.unexpected}"

    async def _open(self, number: int) -> "_Peer":
        if number not in self._peers:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._peers[number] = _Peer(reader, writer)
        return self._peers[number]

    def _peer(self, number: int) -> "_Peer":
        return self._peers[number]

    def _translated(self, frame: bytes) -> bytes:
        """A client's frame with our ledger ids."""
        view = memoryview(frame)
        try:
            made, entry = parse_frame(view)
        except Exception:
            return len(frame).to_bytes(4, "big") + frame  # nonsense on purpose
        if entry is not None:
            return len(frame).to_bytes(4, "big") + frame
        body = getattr(made, BODY_OF_TYPE[made.type])
        ids = []
        if made.type == wire.BaseCommand.ACK:
            ids = list(body.message_id)
        elif made.type == wire.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            ids = list(body.message_ids)
        elif made.type == wire.BaseCommand.SEEK and body.HasField("message_id"):
            ids = [body.message_id]
        elif made.type == wire.BaseCommand.SUBSCRIBE and body.HasField("start_message_id"):
            ids = [body.start_message_id]
        for one in ids:
            one.ledgerId = self._ours.get(one.ledgerId, one.ledgerId)
        return simple_frame(made)

    async def _expect(self, peer: "_Peer", frame: bytes, where: str) -> None:
        made, entry = parse_frame(memoryview(frame))
        if made.type in UNASKED:
            return
        if made.type in (wire.BaseCommand.SEND_RECEIPT, wire.BaseCommand.MESSAGE):
            body = getattr(made, BODY_OF_TYPE[made.type])
            recorded = body.message_id.ledgerId
            if recorded not in self._ours:
                self._ours[recorded] = await peer.ledger_id_of(made, entry)
        wanted = _plain(made, entry)
        await peer.expect(_with_ledgers(wanted, self._ours), where)


class _Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter(2**30)
        self._ended = False
        self.unexpected: list[dict[str, Any]] = []

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def _read(self) -> None:
        data = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self._reader.read(1 << 20)
        except TimeoutError:
            raise AssertionError(f"no answer; so far unmatched: {self.unexpected}") from None
        except ConnectionError:
            pass
        if not data:
            self._ended = True
        for frame in self._splitter.feed(data):
            made, entry = parse_frame(frame)
            if made.type == wire.BaseCommand.PING:
                self.send(simple_frame(wire.BaseCommand(type=wire.BaseCommand.PONG, pong=wire.CommandPong())))
            elif made.type not in UNASKED:
                self.unexpected.append(_plain(made, entry))

    async def expect(self, wanted: dict[str, Any], where: str) -> None:
        while wanted not in self.unexpected:
            same = [one for one in self.unexpected if one["type"] == wanted["type"]]
            assert not self._ended, f"{where}\nended, wanted {wanted}\nsame type: {same}"
            try:
                await self._read()
            except AssertionError as error:
                raise AssertionError(f"{where}\nwanted {wanted}\n{error}") from None
        self.unexpected.remove(wanted)

    async def ledger_id_of(self, made: wire.BaseCommand, entry: memoryview | None) -> int:
        """Our ledger id in the first answer like *made*."""
        body = BODY_OF_TYPE[made.type]
        wanted = _plain(made, entry)
        recorded = str(getattr(made, body).message_id.ledgerId)
        while True:
            for one in self.unexpected:
                if one["type"] == wanted["type"]:
                    ours = one[body]["message_id"]["ledgerId"]
                    if (
                        json.loads(json.dumps(one).replace(f'"ledgerId": "{ours}"', f'"ledgerId": "{recorded}"'))
                        == wanted
                    ):
                        return int(ours)
            await self._read()

    async def expect_end(self) -> None:
        while not self._ended:
            await self._read()

    async def close(self) -> None:
        self._writer.close()


def _plain(made: wire.BaseCommand, entry: memoryview | None = None) -> dict[str, Any]:
    """A command as a dict, without what each broker makes up."""
    plain: dict[str, Any] = MessageToDict(made, preserving_proto_field_name=True)
    body = plain[BODY_OF_TYPE[made.type]]
    for name in OWN & body.keys():
        if name != "message" or isinstance(body[name], str):
            del body[name]
    for name in [key for key, value in body.items() if key.startswith("msg") and isinstance(value, float)]:
        del body[name]
    body.pop("messageAckRate", None)
    if entry is not None:
        plain["entry"] = bytes(entry).hex()
    return plain


def _with_ledgers(plain: dict[str, Any], ours: dict[int, int]) -> dict[str, Any]:
    def swap(match: re.Match[str]) -> str:
        recorded = int(match[1])
        return f'"ledgerId": "{ours.get(recorded, recorded)}"'

    made: dict[str, Any] = json.loads(re.sub(r'"ledgerId": "(\d+)"', swap, json.dumps(plain)))
    return made
