"""One message over a plain socket, as early as the broker takes it: nothing of a client's start-up is in the time."""

import socket
import time

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import parse_frame, simple_frame
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

TOPIC = "persistent://public/default/first"
TIMEOUT_S = 30.0


def first_receipt(host: str, port: int) -> None:
    """Return when the first message is acknowledged. Raises TimeoutError."""
    deadline = time.perf_counter() + TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
            break
        except ConnectionRefusedError:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"nobody listens on {host}:{port}") from None
            time.sleep(0.005)
    with connection:
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
        command.connect.client_version = "bench"
        command.connect.protocol_version = 20
        _ask(connection, command)
        command = wire.BaseCommand(type=wire.BaseCommand.LOOKUP)
        command.lookupTopic.topic, command.lookupTopic.request_id = TOPIC, 1
        while _ask(connection, command).lookupTopicResponse.response != wire.CommandLookupTopicResponse.Connect:
            time.sleep(0.01)
        command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id, command.producer.request_id = TOPIC, 1, 2
        answer = _ask(connection, command)
        assert answer.type == wire.BaseCommand.PRODUCER_SUCCESS, answer
        command = wire.BaseCommand(type=wire.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, 0
        metadata = MessageMetadata(producer_name=answer.producer_success.producer_name, sequence_id=0, publish_time=1)
        entry = encode_entry(metadata, b"first")
        head = simple_frame(command)
        connection.sendall((len(head) - 4 + len(entry)).to_bytes(4, "big") + head[4:] + entry)
        answer = _read(connection)
        assert answer.type == wire.BaseCommand.SEND_RECEIPT, answer


def _ask(connection: socket.socket, command: wire.BaseCommand) -> wire.BaseCommand:
    connection.sendall(simple_frame(command))
    return _read(connection)


def _read(connection: socket.socket) -> wire.BaseCommand:
    size = int.from_bytes(_exactly(connection, 4), "big")
    return parse_frame(memoryview(_exactly(connection, size)))[0]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data
