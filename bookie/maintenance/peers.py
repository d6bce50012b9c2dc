"""Other bookies as a source of repair: one connection to each, one read at a time.

Repair is rare and slow on purpose, so plain requests and answers of the second protocol are enough. It does not need
the ledger client with its quorums and speculation.

Rules:

1. A copy counts only if its digest is right. A damaged copy proves nothing about the others.
2. An entry counts as lost only if every other bookie of its write set denies it explicitly. Silence, errors and limbo
   prove nothing (I14).
"""

import asyncio
import contextlib
from typing import Final

from bookie.maintenance.repair import RepairUnavailable, codec_of, write_set
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.tls.start_tls import open_stream
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES, FrameSplitter, MalformedFrame
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import KIB, Corruption
from magnetar_core.security.tls.contexts import Certificates

# Time for connecting and one answer. Pulsar's clients allow 30 s for a read; repair can ask other copies, or try later.
_TIMEOUT_S: Final = 10.0
_NEGATIVE: Final = (int(v2.V2Error.ENOENTRY), int(v2.V2Error.ENOLEDGER))


class _Peer:
    """A connection to one bookie."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame_bytes_max: int) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter(frame_bytes_max)

    async def read(self, ledger_id: int, entry_id: int) -> bytes | int:
        """The entry, or the refusal. Raises OSError, MalformedFrame."""
        self._writer.write(v2.read_request(ledger_id, entry_id))
        while True:
            data = await self._reader.read(64 * KIB)
            if not data:
                raise ConnectionError("the connection was closed")
            for frame in self._splitter.feed(data):
                _, rc, found_ledger_id, found_entry_id, body, _ = v2.parse_response(frame)
                if (found_ledger_id, found_entry_id) != (ledger_id, entry_id):
                    raise ConnectionError(f"an answer about ledger {found_ledger_id} entry {found_entry_id}")
                return bytes(body) if rc == 0 and isinstance(body, memoryview) else rc

    def close(self) -> None:
        self._writer.close()


class PeerSource:
    """`bookie.maintenance.repair.RepairSource` over the bookies of the cluster."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str,
        clock: Clock,
        certificates: Certificates | None = None,
        frame_bytes_max: int = MAX_FRAME_BYTES,
    ) -> None:
        """With *certificates* other bookies are asked over TLS only. *frame_bytes_max*: their largest answer."""
        self._directory = BookieDirectory(store, root, clock)
        self._bookie_id = bookie_id
        self._certificates = certificates
        self._frame_bytes_max = frame_bytes_max
        self._peers: dict[str, _Peer] = {}
        self._turn = asyncio.Lock()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    async def read_entry(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bytes | None:
        """See RepairSource. Reads of all callers run one at a time."""
        async with self._turn:
            codec = codec_of(metadata)
            failures: list[str] = []
            for bookie_id in write_set(metadata, entry_id):
                if bookie_id == self._bookie_id:
                    continue
                try:
                    answer = await self._ask(bookie_id, ledger_id, entry_id)
                    if isinstance(answer, bytes):
                        codec.open(answer, ledger_id, entry_id)
                        return answer
                except (OSError, TimeoutError, MetadataError, MalformedFrame, Corruption) as error:
                    failures.append(f"{bookie_id}: {error or type(error).__name__}")
                else:
                    if answer not in _NEGATIVE:
                        failures.append(f"{bookie_id}: refused with {answer}")
            if failures:
                raise RepairUnavailable(f"ledger {ledger_id} entry {entry_id}: {'; '.join(failures)}")
            return None

    async def _ask(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes | int:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                peer = self._peers.get(bookie_id)
                if peer is None:
                    host, port = await self._directory.address_of(bookie_id)
                    stream = await open_stream(host, port, self._certificates)
                    peer = self._peers[bookie_id] = _Peer(*stream, self._frame_bytes_max)
                return await peer.read(ledger_id, entry_id)
        except BaseException:
            # Drop the connection: a late answer on it would be taken for that of the next request.
            peer = self._peers.pop(bookie_id, None)
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.close()
            raise
