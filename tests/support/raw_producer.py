"""A Pulsar client of a few lines on one socket. It never reconnects, like an old client of a replaced broker."""

import select
import socket
import time
from typing import Any, Final

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import parse_frame, simple_frame
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

TIMEOUT_S: Final = 30.0


class RawProducer:
    """One producer of one topic, at the broker that serves it. `with RawProducer(…) as producer:`"""

    def __init__(self, address: tuple[str, int], topic: str, name: str) -> None:
        self._name = name
        self._data = b""
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
        command.connect.client_version = "raw"
        command.connect.protocol_version = 20
        self._ask(command)
        command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_name = topic, name
        command.producer.producer_id, command.producer.request_id = 1, 2
        answer = self._ask(command)
        assert answer.type == wire.BaseCommand.PRODUCER_SUCCESS, answer

    def send(self, sequence_id: int, payload: bytes, **fields: Any) -> None:
        """*fields*: of the metadata, whatever they say."""
        command = wire.BaseCommand(type=wire.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, sequence_id
        known = {"producer_name": self._name, "sequence_id": sequence_id, "publish_time": 1}
        metadata = MessageMetadata(**{**known, **fields})
        entry = encode_entry(metadata, payload)
        head = simple_frame(command)
        self._socket.sendall((len(head) - 4 + len(entry)).to_bytes(4, "big") + head[4:] + entry)

    def ping(self) -> None:
        """The broker answers with PONG when it has read what was sent before."""
        self._socket.sendall(simple_frame(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing())))

    def next(self, timeout_s: float = TIMEOUT_S) -> wire.BaseCommand | None:
        """The broker's next command, without pings; None if none arrives, or the connection is closed."""
        deadline = time.monotonic() + timeout_s
        while True:
            size = int.from_bytes(self._data[:4], "big") + 4
            if len(self._data) >= max(size, 8):
                frame, self._data = self._data[4:size], self._data[size:]
                command = parse_frame(memoryview(frame))[0]
                if command.type != wire.BaseCommand.PING:
                    return command
                continue
            if not select.select([self._socket], [], [], max(deadline - time.monotonic(), 0))[0]:
                return None
            more = self._socket.recv(65536)
            if not more:
                return None
            self._data += more

    def _ask(self, command: wire.BaseCommand) -> wire.BaseCommand:
        self._socket.sendall(simple_frame(command))
        answer = self.next()
        assert answer is not None, "the broker does not answer"
        return answer

    def __enter__(self) -> "RawProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
