"""What shares an entry."""

import socket

import pytest

from broker.grpc.publishing.grouping import Group, Grouping, GroupLimits, encode_group
from broker.settings.config import BrokerConfig
from magnetar.processes.broker import PortInUse, _reserve_grpc
from magnetar_core.topics.topics_pb2 import Message
from managed_ledger.messages import messages_of

LIMITS = GroupLimits(messages_max=4, bytes_max=1000)
ME, YOU = object(), object()


def message(payload: bytes = b"x", **fields: object) -> Message:
    return Message(payload=payload, **fields)  # type: ignore[arg-type]


def sizes(groups: list[Group]) -> list[int]:
    return [len(one.messages) for one in groups]


def test_groups_are_cut_by_count_and_by_bytes() -> None:
    grouping = Grouping(LIMITS, is_named=False)
    assert sizes(grouping.add(ME, 0, [message()] * 9, b"", False)) == [4, 4]
    assert sizes(grouping.take_all()) == [1]
    assert sizes(grouping.add(ME, 9, [message(b"x" * 400)] * 3, b"", False)) == [2]
    assert sizes(grouping.add(ME, 12, [message(b"x" * 5000)], b"", False)) == [1]
    assert sizes(grouping.take_all()) == [1]
    assert grouping.is_empty


def test_streams_share_a_group_and_each_run_is_remembered() -> None:
    grouping = Grouping(LIMITS, is_named=False)
    grouping.add(ME, 5, [message()], b"", False)
    grouping.add(YOU, 0, [message()], b"", False)
    (group,) = grouping.add(ME, 6, [message(), message()], b"", False)
    assert [(one.origin, one.first_sequence_id, one.length) for one in group.runs] == [
        (ME, 5, 1),
        (YOU, 0, 1),
        (ME, 6, 2),
    ]


def test_schemas_and_keys_do_not_mix() -> None:
    grouping = Grouping(LIMITS, is_named=False)
    grouping.add(ME, 0, [message(key="a"), message(key="b"), message(), message(key="a")], b"", False)
    grouping.add(YOU, 0, [message()], b"\0", False)
    assert sizes(grouping.take_all()) == [2, 1, 1, 1]


def test_the_sequence_ids_of_a_named_producer_grow_from_entry_to_entry() -> None:
    grouping = Grouping(LIMITS, is_named=True)
    keys = ["a", "a", "b", "a", None, "b"]
    groups = grouping.add(ME, 0, [message() if key is None else message(key=key) for key in keys], b"", False)
    groups += grouping.add(ME, 6, [message(key="b"), message(key="b", deliver_at_ms=9), message()], b"", False)
    groups += grouping.take_all()
    assert [list(one.sequence_ids) for one in groups] == [[0, 1], [2], [3], [4], [5, 6], [7], [8]]


def test_a_delayed_message_goes_behind_those_of_its_key() -> None:
    grouping = Grouping(LIMITS, is_named=False)
    groups = grouping.add(ME, 0, [message(key="a"), message(key="a", deliver_at_ms=9)], b"", False)
    assert [list(one.sequence_ids) for one in groups] == [[0], [1]]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16384])
def test_plain_and_full_messages_are_encoded_as_a_clients_batch(size: int) -> None:
    group = Group((None, False, b"", b"v"))
    for at, one in enumerate(
        [message(b"p" * size), message(b"q", properties={"a": "b"}, event_time_ms=3), message(b"")]
    ):
        group.add(ME, at, one, size)
    send = encode_group(group, [7, 300, 301], producer_name="p", publish_time_ms=5)
    assert (send.sequence_id, send.highest_sequence_id, send.num_messages) == (7, 301, 3)
    metadata, found = messages_of(send.entry)
    messages = list(found)
    assert (metadata.producer_name, metadata.publish_time, metadata.schema_version) == ("p", 5, b"v")
    assert [bytes(one.payload) for one in messages] == [b"p" * size, b"q", b""]
    singles = [one.single for one in messages if one.single is not None]
    assert [one.sequence_id for one in singles] == [7, 300, 301]
    assert [(item.key, item.value) for item in singles[1].properties] == [("a", "b")]
    assert singles[1].event_time == 3


def test_a_port_that_is_taken_is_found_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = BrokerConfig(bind_address="127.0.0.1", grpc_port=taken.getsockname()[1])
        with pytest.raises(PortInUse, match="grpcServicePort"):
            _reserve_grpc(config, config.grpc_port)
    held = _reserve_grpc(BrokerConfig(bind_address="127.0.0.1"), 0)
    assert held is not None
    held.close()
    assert _reserve_grpc(BrokerConfig(), None) is None


def test_a_key_in_base64_is_another_key() -> None:
    grouping = Grouping(LIMITS, is_named=False)
    grouping.add(ME, 0, [message(key="aaaa"), message(key="aaaa", key_is_base64=True), message(key="aaaa")], b"", False)
    found = grouping.take_all()
    assert sizes(found) == [2, 1]


def test_a_port_that_another_server_is_about_to_use_is_left_to_it() -> None:
    held = _reserve_grpc(BrokerConfig(bind_address="127.0.0.1"), 0)
    assert held is not None
    with held:
        port = held.getsockname()[1]
        wanted = BrokerConfig(bind_address="127.0.0.1", grpc_port=port)
        with pytest.raises(PortInUse, match="gRPC port"):
            _reserve_grpc(wanted, port)
        other = _reserve_grpc(wanted, port, preferred_port=port)
        assert other is not None
        with other:
            assert other.getsockname()[1] != port
