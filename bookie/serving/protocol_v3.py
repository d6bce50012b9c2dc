"""The third protocol on a bookie's connection: protobuf requests with all operations.

Consecutive plain adds are taken as one run, without protobuf. Everything else goes through the generated messages.

Rules:

1. An answer carries header and status, and repeats the ids if its operation has a message.
2. A long poll ends with a larger LAC, when the ledger is fenced meanwhile, or when its time is over. Then it is
   answered like a plain read at that moment. A poll of a ledger that was fenced before waits as well: a reader that
   goes on would ask again at once.
3. The explicit LAC goes to the ledger that its blob names, as in Apache's bookie.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from bookie.serving.protocol import AUTH_DISABLED, Peer
from bookie.serving.reads import Reads
from bookie.serving.request_rules import EBADREQ, ENOENTRY, ENOLEDGER, EUA, EUNKNOWNLEDGERSTATE, OK
from bookie.serving.server import Server
from bookie.serving.writes import Writes
from bookie.storage.ledgers import Ledger
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.data.varint import unvarint
from magnetar_core.runtime.types import Buffer

log = logging.getLogger(__name__)


class ProtocolV3:
    """The requests of one connection."""

    def __init__(self, server: Server, peer: Peer, writes: Writes, reads: Reads) -> None:
        self._server = server
        self._rules = server.rules
        self._peer = peer
        self._send = peer.send
        self._writes = writes
        self._reads = reads
        self._polls: set[_LongPoll] = set()

    def close(self) -> None:
        for poll in tuple(self._polls):
            poll.cancel()

    def on_frames(self, frames: Sequence[memoryview], at: int) -> int:
        writes, end = self._writes, len(frames)
        while at < end and not self._peer.held_for and v3.is_v3(frames[at]):
            stop = min(end, at + self._server.limits.adds - writes.adds_in_flight)
            count, size = self._rules.add_run_v3(frames, at, stop, writes.records, writes.answers)
            if count:
                writes.took(count, size, False)
                at += count
                continue
            read = v3.plain_read(frames[at])
            if read is not None:
                self._plain_read(read)
            else:
                self._on_frame(frames[at])
            at += 1
        return at

    def _plain_read(self, read: v3.PlainRead) -> None:
        """Does the same as `_read_v3`."""
        _, ledger_id, entry_id = read
        ledger = self._rules.ledgers.get(ledger_id)
        entry = None
        if ledger is not None and ledger.is_tail_known:
            entry = self._rules.read(ledger_id, entry_id)
        if ledger is None or not isinstance(entry, bytes):
            self._read_v3(unvarint(read.txn_id), ledger_id, entry_id)
            return
        self._server.counters.reads += 1
        self._server.counters.read_bytes += len(entry)
        before, behind = v3.read_parts(read, len(entry), ledger.last_add_confirmed)
        self._send(before)
        self._send(entry)
        self._send(behind)

    def _on_frame(self, frame: memoryview) -> None:
        request = v3.parse_request(frame)
        header = request.header
        operation, txn_id = header.operation, header.txnId
        if header.version != pb.ProtocolVersion.VERSION_THREE:
            self._refuse(request, v2.V2Error.EBADVERSION)
            return
        part, handle = _HANDLERS.get(operation, (None, None))
        if part is None or handle is None or not request.HasField(part):
            self._send(v3.frame_of(v3.response(operation, txn_id, v3.V3Error.EBADREQ)))
            return
        handle(self, txn_id, getattr(request, part), header.priority > 0)

    def _refuse(self, request: pb.Request, rc: int) -> None:
        """Refuse; the answer repeats the ids if the operation has a message for them."""
        operation, txn_id, status = request.header.operation, request.header.txnId, v3.OF_V2[rc]
        if request.HasField("addRequest"):
            add = request.addRequest
            self._send(v3.add_response(txn_id, status, add.ledgerId, add.entryId))
        elif request.HasField("readRequest"):
            read = request.readRequest
            self._send(v3.read_response(txn_id, status, read.ledgerId, read.entryId))
        else:
            self._send(v3.frame_of(v3.response(operation, txn_id, status)))

    def _add(self, txn_id: int, add: pb.AddRequest, high_priority: bool) -> None:
        ledger_id, entry_id, body = add.ledgerId, add.entryId, add.body
        number = ledger_id % len(self._server.journals)
        is_copy = add.HasField("flag") and add.flag == v3.RECOVERY_ADD
        deferred: list[Buffer] | None = [] if add.writeFlags & v3.DEFERRED_SYNC else None
        if len(body) >= 16 and v2.entry_ids(body) != (ledger_id, entry_id):
            rc = EBADREQ  # it would be journaled under other ids than those of the answer
        else:
            rc = self._rules.add(
                ledger_id,
                entry_id,
                add.masterKey,
                body,
                is_copy,
                high_priority,
                self._writes.records[number] if deferred is None else deferred,
            )
        answer = v3.add_response(txn_id, v3.OF_V2[rc], ledger_id, entry_id)
        if rc != OK:
            self._server.counters.adds_refused += 1
            self._send(answer)
        elif deferred is None:
            self._writes.take(number, answer, len(body), is_copy)
        else:
            self._writes.take_deferred(number, answer, len(body), deferred)

    def _read(self, txn_id: int, read: pb.ReadRequest, high_priority: bool) -> None:
        ledger_id, entry_id = read.ledgerId, read.entryId
        flag = read.flag if read.HasField("flag") else 0
        if flag == v3.FENCE_LEDGER:

            def answer(result: bytes | int) -> None:
                if isinstance(result, int):
                    self._send(v3.read_response(txn_id, v3.OF_V2[result], ledger_id, entry_id))
                else:
                    self._send(v3.read_response(txn_id, OK, ledger_id, entry_id, body=result))

            if not read.HasField("masterKey"):
                answer(EUA)
                return
            self._writes.fence(
                ledger_id,
                read.masterKey,
                lambda rc: self._reads.read(ledger_id, entry_id, answer, True) if rc == OK else answer(rc),
            )
        elif read.HasField("previousLAC"):
            self._long_poll(txn_id, read, flag == v3.ENTRY_PIGGYBACK)
        else:
            self._read_v3(txn_id, ledger_id, entry_id, urgent=high_priority)

    def _read_v3(
        self, txn_id: int, ledger_id: int, entry_id: int, woken_ms: int | None = None, urgent: bool = False
    ) -> None:
        """A read whose answer carries the LAC."""

        def answer(result: bytes | int) -> None:
            if isinstance(result, int):
                self._send(v3.read_response(txn_id, v3.OF_V2[result], ledger_id, entry_id))
                return
            ledger = self._rules.ledgers.get(ledger_id)
            max_lac = -1 if ledger is None else ledger.last_add_confirmed
            self._send(
                v3.read_response(txn_id, OK, ledger_id, entry_id, body=result, max_lac=max_lac, lac_update_ms=woken_ms)
            )

        def tail_known(rc: int) -> None:
            if rc == OK:
                self._reads.read(ledger_id, entry_id, answer, urgent)
            else:
                answer(rc)

        self._reads.when_tail_is_known(ledger_id, tail_known, urgent)

    def _long_poll(self, txn_id: int, read: pb.ReadRequest, piggyback: bool) -> None:
        ledger_id, entry_id, previous = read.ledgerId, read.entryId, read.previousLAC
        wait_ms = read.timeOut if read.HasField("timeOut") else 0

        def refuse(rc: int) -> None:
            self._send(v3.read_response(txn_id, v3.OF_V2[rc], ledger_id, entry_id))

        def finish(woken_ms: int | None) -> None:
            if not piggyback:
                self._read_v3(txn_id, ledger_id, entry_id, woken_ms)
                return
            ledger = self._rules.ledgers.get(ledger_id)
            if ledger is None:  # deleted while the poll waited
                refuse(ENOLEDGER)
                return
            max_lac = ledger.last_add_confirmed
            if max_lac <= previous:
                self._send(v3.read_response(txn_id, OK, ledger_id, -1, max_lac=max_lac))
                return

            def answer(result: bytes | int) -> None:
                if isinstance(result, bytes):
                    answer = v3.read_response(
                        txn_id, OK, ledger_id, previous + 1, body=result, max_lac=max_lac, lac_update_ms=woken_ms
                    )
                elif result == ENOENTRY:  # striped to other bookies
                    answer = v3.read_response(txn_id, OK, ledger_id, -1, max_lac=max_lac, lac_update_ms=woken_ms)
                else:
                    answer = v3.read_response(txn_id, v3.OF_V2[result], ledger_id, entry_id)
                self._send(answer)

            self._reads.read(ledger_id, max(previous + 1, 0), answer)

        def tail_known(rc: int) -> None:
            ledger = self._rules.ledgers.get(ledger_id)
            if rc != OK or ledger is None:
                refuse(rc or ENOLEDGER)
            elif ledger.limbo:
                refuse(EUNKNOWNLEDGERSTATE)
            elif (
                wait_ms <= 0
                or ledger.last_add_confirmed > previous
                or self._server.long_polls >= self._server.limits.long_polls
            ):
                finish(None)
            else:
                _LongPoll(self._server, self._polls, ledger, previous, wait_ms / 1000, finish)

        if piggyback and entry_id != -1:
            refuse(EBADREQ)
        else:
            self._reads.when_tail_is_known(ledger_id, tail_known)

    def _write_lac(self, txn_id: int, write: pb.WriteLacRequest, high_priority: bool) -> None:
        ledger_id = write.ledgerId

        def answer(rc: int) -> None:
            answer = v3.response(v3.WRITE_LAC, txn_id, v3.OF_V2[rc])
            answer.writeLacResponse.status = answer.status
            answer.writeLacResponse.ledgerId = ledger_id
            self._send(v3.frame_of(answer))

        records: list[Buffer] = []
        rc = self._rules.write_lac(write.masterKey, write.body, records)
        if rc == OK:
            self._writes.journal(v2.entry_ids(write.body)[0], records, True, answer)
        else:
            answer(rc)

    def _read_lac(self, txn_id: int, read: pb.ReadLacRequest, high_priority: bool) -> None:
        ledger_id = read.ledgerId

        def answer(result: bytes | int) -> None:
            ledger = self._rules.ledgers.get(ledger_id)
            blob = b"" if ledger is None else ledger.explicit_lac
            rc = result if isinstance(result, int) else OK
            if rc in (ENOLEDGER, ENOENTRY):  # without an entry the answer carries the LAC alone
                rc = OK if blob else ENOENTRY
            answer = v3.response(v3.READ_LAC, txn_id, v3.OF_V2[rc])
            answer.readLacResponse.status = answer.status
            answer.readLacResponse.ledgerId = ledger_id
            if rc == OK:
                if blob:
                    answer.readLacResponse.lacBody = blob
                if isinstance(result, bytes):
                    answer.readLacResponse.lastEntryBody = result
            self._send(v3.frame_of(answer))

        self._reads.read(ledger_id, v2.LAST_ENTRY, answer)

    def _force(self, txn_id: int, force: pb.ForceLedgerRequest, high_priority: bool) -> None:
        ledger_id = force.ledgerId

        def answer(rc: int) -> None:
            answer = v3.response(v3.FORCE_LEDGER, txn_id, v3.OF_V2[rc])
            answer.forceLedgerResponse.status = answer.status
            answer.forceLedgerResponse.ledgerId = ledger_id
            self._send(v3.frame_of(answer))

        self._writes.journal(ledger_id, [], True, answer)

    def _bookie_info(self, txn_id: int, info: pb.GetBookieInfoRequest, high_priority: bool) -> None:
        message = v3.response(v3.GET_BOOKIE_INFO, txn_id, OK)
        answer = message.getBookieInfoResponse
        answer.status = message.status
        try:
            usage = self._server.disk_usage()
        except OSError as error:
            log.error("the size of the ledger directories cannot be read: %s", error)
            message.status = answer.status = pb.StatusCode.EIO
        else:
            if info.requested & v3.TOTAL_DISK_CAPACITY:
                answer.totalDiskCapacity = usage.total_bytes
            if info.requested & v3.FREE_DISK_SPACE:
                answer.freeDiskSpace = usage.free_bytes
        self._send(v3.frame_of(message))

    def _list(self, txn_id: int, request: pb.GetListOfEntriesOfLedgerRequest, high_priority: bool) -> None:
        ledger_id = request.ledgerId

        def answer(result: bytes | int) -> None:
            answer = v3.response(v3.GET_LIST_OF_ENTRIES, txn_id, v3.OF_V2[result if isinstance(result, int) else OK])
            listed = answer.getListOfEntriesOfLedgerResponse
            listed.status = answer.status
            listed.ledgerId = ledger_id
            if isinstance(result, bytes):
                listed.availabilityOfEntriesOfLedger = result
            self._send(v3.frame_of(answer))

        ledger = self._rules.ledgers.get(ledger_id)
        if ledger is None:
            answer(ENOLEDGER)
        elif ledger.limbo:
            answer(EUNKNOWNLEDGERSTATE)
        else:
            self._reads.list_entries(ledger_id, answer)

    def _auth(self, txn_id: int, auth: pb.AuthMessage, high_priority: bool) -> None:
        answer = v3.response(v3.AUTH, txn_id, OK)
        answer.authResponse.authPluginName = AUTH_DISABLED
        answer.authResponse.payload = b""
        self._send(v3.frame_of(answer))


_Handler = Callable[[ProtocolV3, int, Any, bool], None]

# Operation → field of the request, handler. START_TLS is not here: with TLS, `bookie.serving.tls_listener` handles it
# before there is a `Connection`. Otherwise it is refused like every operation that this bookie does not have.
_HANDLERS: Final[dict[int, tuple[Any, _Handler]]] = {
    v3.ADD_ENTRY: ("addRequest", ProtocolV3._add),
    v3.READ_ENTRY: ("readRequest", ProtocolV3._read),
    v3.WRITE_LAC: ("writeLacRequest", ProtocolV3._write_lac),
    v3.READ_LAC: ("readLacRequest", ProtocolV3._read_lac),
    v3.FORCE_LEDGER: ("forceLedgerRequest", ProtocolV3._force),
    v3.GET_BOOKIE_INFO: ("getBookieInfoRequest", ProtocolV3._bookie_info),
    v3.GET_LIST_OF_ENTRIES: ("getListOfEntriesOfLedgerRequest", ProtocolV3._list),
    v3.AUTH: ("authRequest", ProtocolV3._auth),
}


class _LongPoll:
    """One read that waits for a larger LAC, for a fence, or until its time is over."""

    __slots__ = ("_finish", "_ledger", "_others", "_previous", "_server", "_timer", "_waiter")

    def __init__(
        self,
        server: Server,
        others: "set[_LongPoll]",
        ledger: Ledger,
        previous: int,
        wait_s: float,
        finish: Callable[[int | None], None],
    ) -> None:
        self._server = server
        self._others = others
        self._ledger = ledger
        self._previous = previous
        self._finish = finish
        # Kept: each access makes another bound method, and the ledger must find this one again.
        self._waiter = self._woken
        others.add(self)
        server.long_polls += 1
        ledger.wait(self._waiter)
        self._timer = server.clock.call_later(wait_s, self._timed_out)

    def cancel(self) -> None:
        self._ledger.stop_waiting(self._waiter)
        self._timer.cancel()
        self._others.discard(self)
        self._server.long_polls -= 1

    def _woken(self, last_add_confirmed: int) -> None:
        ledger = self._ledger
        is_there = self._server.rules.ledgers.get(ledger.ledger_id) is ledger
        if last_add_confirmed <= self._previous and not ledger.fenced and is_there:
            ledger.wait(self._waiter)  # it has only grown to the LAC that the reader knows
            return
        self.cancel()
        self._finish(self._server.clock.wall_ms())

    def _timed_out(self) -> None:
        self.cancel()
        self._finish(None)
