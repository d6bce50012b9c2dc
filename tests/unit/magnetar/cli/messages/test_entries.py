"""Entries as the command line shows them, from a broker's answer."""

import base64

from magnetar.cli.messages.entries import entry_of
from managed_ledger.messages_pb2 import SingleMessageMetadata

HEADERS = {
    "x-pulsar-message-id": "3:5",
    "x-pulsar-property": '{"i":"0"}',
    "x-pulsar-publish-time": "2026-11-23T03:58:52.756Z",
    "x-pulsar-producer-name": "one",
    "x-pulsar-sequence-id": "7",
    "x-pulsar-partition-key": "k",
    "x-pulsar-is-encrypted": "false",
}
SHOWN = {
    "messageId": "3:5",
    "publishTime": "2026-11-23T03:58:52.756Z",
    "producer": "one",
    "sequenceId": 7,
}


def batch(*values: bytes) -> bytes:
    found = b""
    for number, value in enumerate(values):
        single = SingleMessageMetadata(payload_size=len(value), partition_key=f"k{number}")
        single.properties.add(key="b", value=str(number))
        head = single.SerializeToString()
        found += len(head).to_bytes(4, "big") + head + value
    return found


def test_a_single_message_has_its_key_and_properties() -> None:
    assert entry_of(HEADERS, b"hello") == {
        **SHOWN,
        "messages": [{"key": "k", "properties": {"i": "0"}, "value": "hello"}],
    }


def test_what_is_no_text_is_shown_in_base64() -> None:
    (message,) = entry_of(HEADERS, b"\xff\x00")["messages"]
    assert message["value_base64"] == base64.b64encode(b"\xff\x00").decode()


def test_messages_of_a_batch_are_shown_one_by_one() -> None:
    found = entry_of({**HEADERS, "x-pulsar-num-batch-message": "2"}, batch(b"a", b"b"))
    assert found["messages"] == [
        {"key": "k0", "properties": {"b": "0"}, "value": "a"},
        {"key": "k1", "properties": {"b": "1"}, "value": "b"},
    ]


def test_a_batch_that_is_encrypted_or_damaged_is_shown_as_it_is_stored() -> None:
    for more in ({"x-pulsar-is-encrypted": "true"}, {}):
        found = entry_of({**HEADERS, **more, "x-pulsar-num-batch-message": "2"}, b"\x00\x00")
        assert [message["value"] for message in found["messages"]] == ["\x00\x00"]
