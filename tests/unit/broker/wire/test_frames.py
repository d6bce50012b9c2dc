from typing import Any

import pytest

from broker.wire import frames
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from managed_ledger.messages_pb2 import KeyValue, MessageIdData

ENTRY = bytes.fromhex("0e01 16f2f2f7 00000008 0a0170 1000 18e807 6869")
SEND = bytes.fromhex("00000020 00000008 0806 320408001000") + ENTRY
NUMBERS = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**31, 2**63 - 1, 2**64 - 1]


def test_ping_and_pong_are_the_known_bytes() -> None:
    assert frames.command(BaseCommand.PING) == bytes.fromhex("00000009 00000005 0812 920100")
    assert frames.command(BaseCommand.PONG) == bytes.fromhex("00000009 00000005 0813 9a0100")


def test_a_send_is_read_from_the_known_bytes() -> None:
    send = frames.parse_send(memoryview(SEND)[4:])
    assert send is not None
    assert (send.producer_id, send.sequence_id, send.num_messages) == (0, 0, 1)
    assert bytes(send.entry) == ENTRY
    assert frames.checksum_verdict(send.entry) is True
    assert frames.metadata_bytes(send.entry) > 0


def test_a_send_of_any_shape_is_read_as_protobuf_reads_it() -> None:
    for number in NUMBERS:
        made = BaseCommand(type=BaseCommand.SEND)
        made.send.producer_id = number
        made.send.sequence_id = number
        made.send.highest_sequence_id = number
        made.send.num_messages = 7
        made.send.is_chunk = True
        if number == 128:
            made.send.message_id.ledgerId = 1
            made.send.message_id.entryId = 1
            made.send.message_id.ack_set.extend(range(100))  # more than 127 bytes
        head, entry = frames.payload_frame(made, ENTRY)
        send = frames.parse_send(memoryview(head + bytes(entry))[4:])
        assert send is not None
        assert send[:7] == (number, number, number, 7, True, False, False)
        assert bytes(send.entry) == ENTRY


def test_other_commands_are_no_sends() -> None:
    assert frames.parse_send(memoryview(frames.command(BaseCommand.PING))[4:]) is None


def test_receipts_are_the_bytes_of_protobuf() -> None:
    for number in NUMBERS:
        made = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        made.send_receipt.producer_id = number
        made.send_receipt.sequence_id = number
        made.send_receipt.message_id.ledgerId = number
        made.send_receipt.message_id.entryId = number
        made.send_receipt.highest_sequence_id = number
        assert frames.send_receipt(number, number, number, number, number) == frames.simple_frame(made)


def test_heads_of_messages_are_the_bytes_of_protobuf() -> None:
    for number in NUMBERS:
        for partition in (-1, 0, 200):
            for redelivery_count, ack_set, epoch in ((0, None, None), (3, [28, -1], 0), (300, [1] * 40, number)):
                made = BaseCommand(type=BaseCommand.MESSAGE)
                made.message.consumer_id = number
                made.message.message_id.CopyFrom(MessageIdData(ledgerId=number, entryId=number, partition=partition))
                if redelivery_count:
                    made.message.redelivery_count = redelivery_count
                made.message.ack_set.extend(ack_set or [])
                if epoch is not None:
                    made.message.consumer_epoch = epoch
                heads = frames.MessageHeads(number, partition)
                wanted, _ = frames.payload_frame(made, ENTRY)
                for _ in range(2):  # the second time from what the first one left
                    assert heads.head(number, number, len(ENTRY), redelivery_count, ack_set, epoch) == wanted


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "000000",
        "00000000",
        "00000009 0812",  # longer than the frame
        "00000003 089601",  # type 150
        "00000002 0806",  # a SEND without its body
        "00000004 08063200",  # a SEND without ids
        "00000004 08052a00",  # a PRODUCER without its fields
        "00000004 ffffffff",
    ],
)
def test_nonsense_is_malformed(frame: str) -> None:
    data = memoryview(bytes.fromhex(frame))
    with pytest.raises(MalformedFrame):
        frames.parse_send(data) or frames.parse_frame(data)


def test_an_entry_cut_inside_its_metadata_is_not_well_formed() -> None:
    assert frames.metadata_bytes(memoryview(ENTRY)[:16]) == -1
    assert frames.metadata_bytes(memoryview(b"")) == -1
    assert frames.metadata_bytes(memoryview(ENTRY)[6:]) == frames.metadata_bytes(memoryview(ENTRY))


def test_a_wrong_checksum_is_seen_and_none_is_no_verdict() -> None:
    assert frames.checksum_verdict(memoryview(ENTRY[:-1] + b"x")) is False
    assert frames.checksum_verdict(memoryview(ENTRY[6:])) is None


def test_the_brokers_block_and_the_checksum_come_off() -> None:
    stamped = frames.with_broker_metadata(bytes.fromhex("08e8071000"), ENTRY)
    assert stamped == bytes.fromhex("0e02 00000005 08e8071000") + ENTRY
    assert bytes(frames.without_broker_metadata(stamped)) == ENTRY
    assert frames.without_broker_metadata(ENTRY) is ENTRY
    assert bytes(frames.without_checksum(ENTRY)) == ENTRY[6:]
    assert frames.checksum_verdict(memoryview(stamped)) is True


def test_defaults_that_matter_are_on_the_wire() -> None:
    frame = frames.command(BaseCommand.LOOKUP_RESPONSE, request_id=1, response=wire.CommandLookupTopicResponse.Redirect)
    made, _ = frames.parse_frame(memoryview(frame)[4:])
    assert made.lookupTopicResponse.HasField("response")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (BaseCommand.PRODUCER, {"topic": "t", "producer_id": 1, "request_id": 1, "producer_name": "0x0"}),
        (BaseCommand.SUBSCRIBE, {"topic": "0x0", "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 1}),
        (BaseCommand.PRODUCER, {"topic": "t", "producer_id": 1, "request_id": 1,
                                "metadata": [KeyValue(key="0x0", value="v")]}),
        (BaseCommand.ACK, {"consumer_id": 1, "ack_type": 0, "properties": [wire.KeyLongValue(key="0x0", value=1)]}),
        (BaseCommand.GET_OR_CREATE_SCHEMA, {
            "topic": "t", "request_id": 1,
            "schema": wire.Schema(name="0x0", schema_data=b"", type=wire.Schema.NoType),
        }),
    ],
)  # fmt: skip
def test_a_command_with_text_that_is_not_utf8_is_refused(kind: int, fields: dict[str, Any]) -> None:
    frame = memoryview(frames.command(kind, **fields))[4:]
    assert frames.parse_frame(frame)[0].type == kind
    with pytest.raises(MalformedFrame, match=f"{BaseCommand.Type.Name(kind)} with a .* that is not UTF-8"):
        frames.parse_frame(memoryview(bytes(frame).replace(b"0x0", b"0\xff0")))


def test_many_properties_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = frames._text_problem

    def counted(message: Any) -> str | None:
        nonlocal looks
        looks += 1
        return look(message)

    monkeypatch.setattr(frames, "_text_problem", counted)
    pairs = [KeyValue(key=str(number), value="v") for number in range(9_900)]
    frame = frames.command(BaseCommand.PRODUCER, topic="t", producer_id=1, request_id=1, metadata=pairs)
    frames.parse_frame(memoryview(frame)[4:])
    assert looks == 1


def test_a_command_has_a_limited_number_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TEXTS_MAX", 2)
    for count in (2, 3):
        pairs = [KeyValue(key=str(number), value="v") for number in range(count)]
        frame = frames.command(BaseCommand.PRODUCER, topic="t", producer_id=1, request_id=1, metadata=pairs)
        if count == 2:
            frames.parse_frame(memoryview(frame)[4:])
            continue
        with pytest.raises(MalformedFrame, match="PRODUCER with a metadata of 3 elements, more than 2"):
            frames.parse_frame(memoryview(frame)[4:])
