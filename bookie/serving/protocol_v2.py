"""The second protocol on a bookie's connection: plain binary frames. Pulsar's brokers write and read over it.

Consecutive adds are taken as one run. A read that memory can answer is answered within the call.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bookie.serving.cold_reads import ColdRead, Fetched
from bookie.serving.protocol import AUTH_DISABLED, Peer
from bookie.serving.reads import Reads
from bookie.serving.request_rules import EIO, OK
from bookie.serving.server import Server
from bookie.serving.writes import Writes
from bookie.storage.ledger_storage import Block
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.framing import MalformedFrame


class ProtocolV2:
    """The requests of one connection. It takes every frame: one that is not of this protocol is malformed."""

    def __init__(self, server: Server, peer: Peer, writes: Writes, reads: Reads) -> None:
        self._server = server
        self._rules = server.rules
        self._limits = server.limits
        self._peer = peer
        self._send = peer.send
        self._writes = writes
        self._records = writes.records
        self._reads = reads

    def close(self) -> None:
        """Nothing to do: its requests wait only for the journal and the disk."""

    def on_frames(self, frames: Sequence[memoryview], at: int) -> int:
        peer, writes, end = self._peer, self._writes, len(frames)
        while at < end and not peer.held_for:
            frame = frames[at]
            word = frame[:4]
            if word == v2.PLAIN_ADD_BYTES or word == v2.RECOVERY_ADD_BYTES:
                stop = min(end, at + self._limits.adds - writes.adds_in_flight)
                count = self._rules.add_run(frames, at, stop, writes.records, writes.answers)
                if count:
                    size = sum(map(len, frames[at : at + count])) - count * v2.ADD_PREFIX_BYTES
                    writes.took(count, size, word == v2.RECOVERY_ADD_BYTES)
                    at += count
                    continue
            self._on_frame(frame)
            at += 1
        return at

    def _on_frame(self, frame: memoryview) -> None:
        opcode, version, flags, ledger_id, entry_id, key, extra = v2.parse_request(frame)
        if version > v2.VERSION:
            self._refuse_version(opcode, version, ledger_id, entry_id, extra)
        elif opcode == v2.ADD_ENTRY:
            assert key is not None
            number = ledger_id % len(self._records)
            is_copy = flags & v2.FLAG_RECOVERY_ADD != 0
            rc = self._rules.add(
                ledger_id,
                entry_id,
                key,
                extra,
                is_copy,
                flags & v2.FLAG_HIGH_PRIORITY != 0,
                self._records[number],
            )
            answer = v2.add_response(rc, ledger_id, entry_id, version)
            if rc == OK:
                self._writes.take(number, answer, len(extra), is_copy)
            else:
                self._server.counters.adds_refused += 1
                self._send(answer)
        elif opcode == v2.READ_ENTRY:
            if flags & v2.FLAG_DO_FENCING:
                self._fence(
                    ledger_id,
                    key,
                    lambda: self._read(version, ledger_id, entry_id, True),
                    lambda rc: self._answer_read(version, ledger_id, entry_id, rc),
                )
            else:
                self._read(version, ledger_id, entry_id, flags & v2.FLAG_HIGH_PRIORITY != 0)
        elif opcode == v2.BATCH_READ_ENTRY:
            if flags & v2.FLAG_DO_FENCING:
                self._fence(
                    ledger_id,
                    key,
                    lambda: self._batch_read(version, ledger_id, entry_id, extra, True),
                    lambda rc: self._answer_batch(version, ledger_id, entry_id, extra[0], rc),
                )
            else:
                self._batch_read(version, ledger_id, entry_id, extra, flags & v2.FLAG_HIGH_PRIORITY != 0)
        else:
            # Authentication. It is not demanded and not checked here: the client may continue.
            message = pb.AuthMessage(authPluginName=AUTH_DISABLED, payload=b"").SerializeToString()
            self._send(v2.auth_frame(message, version))

    def _refuse_version(self, opcode: int, version: int, ledger_id: int, entry_id: int, extra: Any) -> None:
        rc = int(v2.V2Error.EBADVERSION)
        if opcode == v2.ADD_ENTRY:
            self._send(v2.add_response(rc, ledger_id, entry_id, version))
        elif opcode == v2.BATCH_READ_ENTRY:
            self._answer_batch(version, ledger_id, entry_id, extra[0], rc)
        else:
            self._answer_read(version, ledger_id, entry_id, rc)

    # -- reads

    def _fence(
        self, ledger_id: int, key: bytes | None, read: Callable[[], None], refuse: Callable[[int], None]
    ) -> None:
        """Fence the ledger, then read when the fence is durable. Raises MalformedFrame."""
        if key is None:
            raise MalformedFrame("a fencing read in a version without keys")
        self._writes.fence(ledger_id, key, lambda rc: read() if rc == OK else refuse(rc))

    def _read(self, version: int, ledger_id: int, entry_id: int, urgent: bool) -> None:
        self._reads.read(ledger_id, entry_id, partial(self._answer_read, version, ledger_id, entry_id), urgent)

    def _answer_read(self, version: int, ledger_id: int, entry_id: int, result: bytes | int) -> None:
        if isinstance(result, int):
            self._send(v2.read_response(result, ledger_id, entry_id, 0, version))
            return
        self._send(v2.read_response(OK, ledger_id, entry_id, len(result), version))
        self._send(result)

    def _batch_read(self, version: int, ledger_id: int, first: int, extra: tuple[int, int, int], urgent: bool) -> None:
        request_id, max_count, max_bytes = extra
        max_bytes = min(max_bytes, self._limits.batch_read_bytes)
        answer = partial(self._answer_batch, version, ledger_id, first, request_id)
        self._server.counters.reads += 1
        run = self._rules.read_run(ledger_id, first, max_count, max_bytes)
        if run is not None:
            answer(run)
            return
        storage = self._server.storage

        def work(fetched: Fetched) -> tuple[Block, int]:
            count = max_count if max_count > 0 else 2**31
            block = storage.read_block(ledger_id, first, count, max_bytes - v2.BATCH_START_BYTES)
            return block, block.size_bytes

        def done(block: Block | None, error: Exception | None) -> None:
            if error is not None or block is None:
                self._server.read_failed(ledger_id, f"a run from entry {first} on", error)
                answer(EIO)
            elif not block.entries:
                answer(self._reads.absent(ledger_id))
            else:
                self._server.counters.read_bytes += block.size_bytes - 4 * block.entries  # without their lengths
                self._send(v2.batch_read_response_head(ledger_id, first, request_id, block.size_bytes, version))
                for buffer in block.buffers:
                    self._send(buffer)

        self._reads.read_cold(ColdRead(work, done), urgent)

    def _answer_batch(
        self, version: int, ledger_id: int, first: int, request_id: int, result: list[bytes] | int
    ) -> None:
        rc, entries = (result, []) if isinstance(result, int) else (OK, result)
        self._server.counters.read_bytes += sum(map(len, entries))
        for buffer in v2.batch_read_response(rc, ledger_id, first, request_id, entries, version):
            self._send(buffer)
