"""Conversations between Pulsar's clients and its broker: every frame, read and made (tests/vectors/wire/pulsar*)."""

import struct
from collections import Counter
from typing import Any

from google.protobuf.json_format import MessageToDict

from broker.wire.frames import (
    MessageHeads,
    checksum_verdict,
    metadata_bytes,
    parse_frame,
    parse_send,
    payload_frame,
    send_receipt,
    simple_frame,
)
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES, FrameSplitter, FrameTooLarge, MalformedFrame
from tests.golden.test_entries import check_message
from tests.support.golden import DECODES, ENCODES, Report, b64, beside, golden, load, rows

# The frame at this place of a recording was too large to be recorded whole: the missing bytes are zeros.
CUT = "pulsarraw-toobig"
OVERSIZE = "pulsarraw-oversize"


def frames_of(vector: str) -> dict[tuple[int, str], list[memoryview]]:
    """The frames of each (connection, direction); one that was cut is filled up."""
    splitters: dict[tuple[int, str], FrameSplitter] = {}
    found: dict[tuple[int, str], list[memoryview]] = {}
    for row in rows(beside(vector, ".jsonl")):
        if "data" not in row:
            continue
        data = b64(row["data"])
        if row.get("truncated"):
            data = data.ljust(4 + int(struct.unpack_from(">I", data)[0]), b"\0")
        key = (row["conn"], row["dir"])
        splitter = splitters.setdefault(key, FrameSplitter())
        frames = found.setdefault(key, [])
        try:
            frames += splitter.feed(data)
        except FrameTooLarge:
            assert OVERSIZE in vector, vector
    return found


@golden(
    "wire/pulsar*.decoded.jsonl",
    beside_it=(".jsonl", ".json"),
    how={DECODES, ENCODES},
    compared="every field of every command in both directions; entries with their checksums, metadata, batches and "
    "decompressed payloads; each frame made again to the same bytes, receipts and heads of messages also by the "
    "hot path's code; what the broker hung up on is refused; how many frames the story has",
)
def test_frames_of_pulsar(report: Report) -> None:
    told = rows(report.vector)
    with report.row("the story"):
        check_story(report.vector, told)
    frames = frames_of(report.vector)
    at = dict.fromkeys(frames, 0)
    for number, row in enumerate(told):
        with report.row(number):
            if "conn" not in row:
                check_cut(frames[0, "c2s"][at[0, "c2s"]])
                at[0, "c2s"] += 1
            elif "end" not in row:
                key = (row["conn"], row["dir"])
                frame = frames[key][at[key]]
                at[key] += 1
                check_frame(frame, row)
    with report.row("no more frames"):
        assert at == {key: len(found) for key, found in frames.items()}


def check_story(vector: str, told: list[dict[str, Any]]) -> None:
    story = load(beside(vector, ".json"))
    assert vector.endswith(story["expectedValues"])
    counted: Counter[str] = Counter()
    for row in told:
        kind = row["command"].get("type", "?") if "command" in row else "connection end" if "end" in row else "note"
        counted[f"{row.get('dir', '-')} {kind}"] += 1
    assert dict(counted) == story["frames"]


def check_cut(frame: memoryview) -> None:
    """A message one byte above what CONNECTED says is the limit: still a frame."""
    assert len(frame) <= MAX_FRAME_BYTES
    send = parse_send(frame)
    assert send is not None
    assert len(send.entry) > 5_242_881


def check_frame(frame: memoryview, row: dict[str, Any]) -> None:
    if not row["command"]:
        try:
            parse_frame(frame)
        except MalformedFrame:
            return
        raise AssertionError("a command that does not exist was read")
    command, entry = parse_frame(frame)
    assert MessageToDict(command, preserving_proto_field_name=True) == row["command"]
    assert (entry is not None) == ("entry" in row)
    if entry is not None:
        assert checksum_verdict(entry) is row["entry"].get("checksumOk")
        assert metadata_bytes(entry) >= 0
        check_message(entry, row["entry"])
    check_made_again(frame, command, entry)


def check_made_again(frame: memoryview, command: BaseCommand, entry: memoryview | None) -> None:
    whole = struct.pack(">I", len(frame)) + bytes(frame)
    made = simple_frame(command) if entry is None else b"".join(map(bytes, payload_frame(command, entry)))
    assert made == whole
    if command.type == BaseCommand.SEND:
        assert entry is not None
        check_send(frame, command, entry)
    elif command.type == BaseCommand.SEND_RECEIPT:
        body = command.send_receipt
        place = body.message_id
        quick = send_receipt(
            body.producer_id, body.sequence_id, body.highest_sequence_id, place.ledgerId, place.entryId
        )
        assert quick == whole
    elif command.type == BaseCommand.MESSAGE:
        assert entry is not None
        message = command.message
        head = MessageHeads(message.consumer_id, message.message_id.partition).head(
            message.message_id.ledgerId,
            message.message_id.entryId,
            len(entry),
            message.redelivery_count,
            message.ack_set,
            message.consumer_epoch if message.HasField("consumer_epoch") else None,
        )
        assert head + bytes(entry) == whole


def check_send(frame: memoryview, command: BaseCommand, entry: memoryview) -> None:
    body = command.send
    send = parse_send(frame)
    assert send is not None
    assert (send.producer_id, send.sequence_id, send.highest_sequence_id, send.num_messages) == (
        body.producer_id, body.sequence_id, body.highest_sequence_id, body.num_messages
    )  # fmt: skip
    assert (send.is_chunk, send.is_marker, send.is_transactional) == (body.is_chunk, body.marker, False)
    assert send.entry == entry
