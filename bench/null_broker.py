"""A broker that does nothing: the ceiling of a client. `python -m bench.null_broker PORT`.

It claims to serve every topic, without partitions. Each message gets its receipt at once and is forgotten. A consumer
is sent one prepared entry again and again, as far as its permits allow.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import MessageHeads, parse_frame, send_receipt, simple_frame
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

REQUEST_IDS: dict[int, Callable[[wire.BaseCommand], int]] = {
    wire.BaseCommand.SUBSCRIBE: lambda command: command.subscribe.request_id,
    wire.BaseCommand.CLOSE_PRODUCER: lambda command: command.close_producer.request_id,
    wire.BaseCommand.CLOSE_CONSUMER: lambda command: command.close_consumer.request_id,
}
FRAME_BYTES_MAX = 6 * 1024 * 1024
BATCH = 100
SIZE = 1024


def batch_entry() -> bytes:
    """An entry of BATCH messages of SIZE bytes."""
    single = b"\x00\x00\x00\x03\x18" + bytes([SIZE & 0x7F | 0x80, SIZE >> 7])  # SingleMessageMetadata: payload_size
    metadata = MessageMetadata(producer_name="n", sequence_id=0, publish_time=1, num_messages_in_batch=BATCH)
    return encode_entry(metadata, (single + bytes(SIZE)) * BATCH)


class NullBroker(asyncio.Protocol):
    def __init__(self, port: int) -> None:
        self._url = f"pulsar://127.0.0.1:{port}"
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._entry = batch_entry()
        self._entry_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for frame in self._splitter.feed(data):
            self._answer(parse_frame(frame)[0], out)
        if out:
            self._transport.write(b"".join(out))

    def _answer(self, command: wire.BaseCommand, out: list[bytes]) -> None:
        kind = wire.BaseCommand
        if command.type == kind.SEND:
            send = command.send
            self._entry_id += 1
            out.append(send_receipt(send.producer_id, send.sequence_id, 0, 1, self._entry_id))
            return
        answer = wire.BaseCommand()
        if command.type == kind.CONNECT:
            answer.type = kind.CONNECTED
            answer.connected.server_version = "null"
            answer.connected.protocol_version = 20
            answer.connected.max_message_size = 5 * 1024 * 1024
        elif command.type == kind.PARTITIONED_METADATA:
            answer.type = kind.PARTITIONED_METADATA_RESPONSE
            found = answer.partitionMetadataResponse
            found.request_id, found.partitions, found.response = command.partitionMetadata.request_id, 0, 0  # type: ignore[assignment]
        elif command.type == kind.LOOKUP:
            answer.type = kind.LOOKUP_RESPONSE
            located = answer.lookupTopicResponse
            located.request_id, located.response = command.lookupTopic.request_id, 1  # type: ignore[assignment]
            located.brokerServiceUrl, located.authoritative = self._url, True
        elif command.type == kind.PRODUCER:
            answer.type = kind.PRODUCER_SUCCESS
            answer.producer_success.request_id = command.producer.request_id
            answer.producer_success.producer_name = "n"
        elif command.type == kind.PING:
            answer.type = kind.PONG
            answer.pong.SetInParent()
        elif command.type == kind.FLOW:
            heads = MessageHeads(command.flow.consumer_id, -1)
            for _ in range(max(command.flow.messagePermits // BATCH, 1)):
                out.append(heads.head(1, self._entry_id, len(self._entry), 0, None, None))
                out.append(self._entry)
                self._entry_id += 1
            return
        elif command.type in REQUEST_IDS:
            answer.type = kind.SUCCESS
            answer.success.request_id = REQUEST_IDS[command.type](command)
        else:
            return
        out.append(simple_frame(answer))


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: NullBroker(port), "127.0.0.1", port)
    print("null broker is ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(int(sys.argv[1])))
