"""The metadata record of one ledger: its fields, its encodings and its legal changes. No IO.

    BookieMetadataFormatVersion\\t<v>\\n   then
      v = 3   varint length, LedgerMetadataFormat (binary)           what current clients write
      v = 2   LedgerMetadataFormat as text
      v = 1   lines: write quorum, ensemble size, length, one line per segment, "<last>\\tCLOSED"

    OPEN ──▶ IN_RECOVERY ──▶ CLOSED        the creator may go from OPEN to CLOSED
     └─────────────────────────▲

Rules the code below keeps (I3, I18 to I20):

1. An update keeps the format version the record was read with.
2. Quorums, digest and password never change. After CLOSED only ensembles do (re-replication); and where every bookie
   of an ensemble has every entry, a closed ledger may get more copies.
3. Segments start at 0 and grow; each ensemble has `ensemble_size` different bookies.
4. A record that cannot be read raises Corruption; it never counts as absent.

Format 1 has no fields for digest type, password and ack quorum: they are read as CRC32, empty and the write quorum.
"""

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.metadata.formats_pb2 import LedgerMetadataFormat
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.data.varint import varint
from magnetar_core.runtime.types import START_NEWER, Corruption

NO_ENTRY: Final = -1
CURRENT_FORMAT: Final = 3
SHORT_ID_LIMIT: Final = 2_147_483_647
"""Ids from here on use the long path (this very id included)."""

_VERSION_LINE: Final = re.compile(rb"BookieMetadataFormatVersion\t(\d{1,3})\n")
_IN_RECOVERY_LAST_ENTRY: Final = -102
_SHORT_PATH: Final = re.compile(r"(?:^|/)(\d{2})/(\d{4})/L(\d{4})$")
_LONG_PATH: Final = re.compile(r"(?:^|/)(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})$")


class LedgerState(IntEnum):
    """The state of a ledger; the numbers are those of the record."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class IllegalChange(ValueError):
    """A change of ledger metadata that no client may make; a programmer's error."""


class Segment(NamedTuple):
    """The entries from *first_entry_id* on (up to the next segment) are on *ensemble*."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """The record of one ledger. *length* counts payload bytes; it and *last_entry_id* are valid only
    when CLOSED (0 and -1 before). *ctime_ms* None: the store's own creation time counts."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    segments: tuple[Segment, ...]
    password: bytes = b""
    state: LedgerState = LedgerState.OPEN
    length: int = 0
    last_entry_id: int = NO_ENTRY
    ctime_ms: int | None = None
    custom_metadata: tuple[tuple[str, bytes], ...] = ()
    ctoken: int | None = None
    """A random number of the creator; 0 after any later change."""
    format_version: int = CURRENT_FORMAT

    def problems(self) -> list[str]:
        """The faults of the record; empty for a well-formed one."""
        problems = []
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            problems.append(
                f"ack quorum {self.ack_quorum}, write quorum {self.write_quorum} and ensemble size "
                f"{self.ensemble_size} must not decrease, and start at 1"
            )
        if not self.segments:
            problems.append("it has no segment")
        elif self.segments[0].first_entry_id != 0:
            problems.append(f"its first segment starts at {self.segments[0].first_entry_id}")
        for segment in self.segments:
            if len(segment.ensemble) != self.ensemble_size or len(set(segment.ensemble)) != self.ensemble_size:
                problems.append(f"segment {segment.first_entry_id} names {', '.join(segment.ensemble)}")
        firsts = [segment.first_entry_id for segment in self.segments]
        if any(first >= second for first, second in pairwise(firsts)):
            problems.append(f"its segments start at {firsts}")
        return problems

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    def segment_for(self, entry_id: int) -> Segment:
        """The segment that covers *entry_id*."""
        assert entry_id >= 0
        at = bisect_right(self.segments, entry_id, key=lambda segment: segment.first_entry_id)
        return self.segments[at - 1]

    def ensemble_for(self, entry_id: int) -> tuple[str, ...]:
        return self.segment_for(entry_id).ensemble

    def segment_end(self, first_entry_id: int) -> int | None:
        """The first entry id after the segment that starts at *first_entry_id*; None for the last segment."""
        firsts = [segment.first_entry_id for segment in self.segments]
        at = firsts.index(first_entry_id) + 1
        return firsts[at] if at < len(firsts) else None

    def bookies(self) -> frozenset[str]:
        return frozenset(bookie for segment in self.segments for bookie in segment.ensemble)

    # Legal changes. Each returns a new value with the creator token cleared.

    def with_ensemble(self, first_entry_id: int, ensemble: tuple[str, ...]) -> "LedgerMetadata":
        """The creator's ensemble change: entries from *first_entry_id* (its LAC + 1) on go to *ensemble*."""
        if self.state is not LedgerState.OPEN:
            raise IllegalChange(f"an ensemble change of a ledger that is {self.state.name}")
        return self._changed(segments=_with_segment(self.segments, first_entry_id, ensemble))

    def with_segment_replaced(self, first_entry_id: int, ensemble: tuple[str, ...]) -> "LedgerMetadata":
        """Re-replication: the segment that starts at *first_entry_id* was copied to *ensemble*."""
        if all(segment.first_entry_id != first_entry_id for segment in self.segments):
            raise IllegalChange(f"no segment starts at {first_entry_id}")
        return self._changed(
            segments=tuple(
                Segment(first_entry_id, ensemble) if segment.first_entry_id == first_entry_id else segment
                for segment in self.segments
            )
        )

    def with_more_copies(self, copies: int, ensembles: Mapping[int, tuple[str, ...]]) -> "LedgerMetadata":
        """A closed ledger with *copies* of each entry, on *ensembles* by first entry: the former ones, and more
        bookies, which lack the entries so far. Readers ask the others then."""
        if not self.is_closed or self.ensemble_size != self.write_quorum or copies < self.write_quorum:
            raise IllegalChange(f"{copies} copies of a ledger that is {self.state.name}, or striped, or has more")
        segments = tuple(Segment(first_entry_id, ensembles[first_entry_id]) for first_entry_id, _ in self.segments)
        if any(new[1][: self.ensemble_size] != old[1] for new, old in zip(segments, self.segments, strict=True)):
            raise IllegalChange("a bookie that has the entries is not named any more")
        return self._changed(ensemble_size=copies, write_quorum=copies, segments=segments)

    def in_recovery(self) -> "LedgerMetadata":
        if self.is_closed:
            raise IllegalChange("a closed ledger does not go back to IN_RECOVERY")
        return self._changed(state=LedgerState.IN_RECOVERY)

    def closed(
        self, last_entry_id: int, length: int, ensembles: Mapping[int, tuple[str, ...]] | None = None
    ) -> "LedgerMetadata":
        """Seal at *last_entry_id*. *ensembles*: those to which a recovery wrote back, by first entry (I18).

        Segments that would begin after the last entry hold nothing and are left out.
        """
        if self.is_closed:
            raise IllegalChange("the ledger is closed already")
        assert last_entry_id >= NO_ENTRY
        assert length >= 0
        segments = self.segments
        for first_entry_id, ensemble in sorted((ensembles or {}).items()):
            segments = _with_segment(segments, first_entry_id, ensemble)
        kept = tuple(s for s in segments if s.first_entry_id <= max(last_entry_id, 0))
        return self._changed(state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length, segments=kept)

    def _changed(self, **fields: object) -> "LedgerMetadata":
        changed: LedgerMetadata = dataclasses.replace(self, ctoken=0, **fields)  # type: ignore[arg-type]
        problems = changed.problems()
        if problems:
            raise IllegalChange("; ".join(problems))
        return changed


def _with_segment(segments: tuple[Segment, ...], first_entry_id: int, ensemble: tuple[str, ...]) -> tuple[Segment, ...]:
    last_first = segments[-1].first_entry_id
    if first_entry_id < last_first:
        raise IllegalChange(f"a segment at {first_entry_id} behind one at {last_first}")
    if first_entry_id == last_first:
        segments = segments[:-1]
    return (*segments, Segment(first_entry_id, ensemble))


def encode(metadata: LedgerMetadata) -> bytes:
    """The record as it is stored, in `metadata.format_version`."""
    problems = metadata.problems()
    assert not problems, "; ".join(problems)
    head = b"BookieMetadataFormatVersion\t%d\n" % metadata.format_version
    match metadata.format_version:
        case 3:
            message = _to_message(metadata)
            message.cToken = metadata.ctoken or 0
            body = message.SerializeToString()
            return head + varint(len(body)) + body
        case 2:
            return head + text_format.MessageToString(_to_message(metadata)).encode()
        case 1:
            return head + _encode_v1(metadata).encode()
    raise AssertionError(f"metadata format {metadata.format_version}")


def decode(data: bytes) -> LedgerMetadata:
    """Raises Corruption if *data* is not a ledger record of format 1, 2 or 3."""
    version_line = _VERSION_LINE.match(data)
    if version_line is None:
        raise Corruption(f"ledger metadata: expected a version line, found {bytes(data[:40])!r}")
    body = data[version_line.end() :]
    version = int(version_line[1])
    try:
        match version:
            case 3:
                size, start = _read_varint(body)
                if start + size > len(body):
                    raise Corruption(f"ledger metadata: cut short, {len(body) - start} of {size} bytes")
                metadata = _from_message(LedgerMetadataFormat.FromString(body[start : start + size]), version)
            case 2:
                message = LedgerMetadataFormat()
                text_format.Parse(body.decode(), message, allow_unknown_field=True)
                metadata = _from_message(message, version)
            case 1:
                metadata = _decode_v1(body.decode())
            case _:
                raise Corruption(f"ledger metadata: format {version}; known are 1 to 3; {START_NEWER}")
    except (DecodeError, text_format.ParseError, ValueError, IndexError) as error:
        raise Corruption(f"ledger metadata, format {version}: {error}") from error
    problems = metadata.problems()
    if problems:
        raise Corruption(f"ledger metadata: {'; '.join(problems)}")
    return metadata


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length if metadata.is_closed else 0,
        lastEntryId=metadata.last_entry_id if metadata.is_closed else NO_ENTRY,
        state=metadata.state.name,
        digestType=metadata.digest_type.name,
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
    )
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    for key, value in metadata.custom_metadata:
        message.customMetadata.add(key=key, value=value)
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    return message


def _from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    state = LedgerState(message.state)
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else DigestType.CRC32,
        password=message.password,
        state=state,
        length=message.length if is_closed else 0,
        last_entry_id=message.lastEntryId if is_closed else NO_ENTRY,
        segments=tuple(Segment(s.firstEntryId, tuple(s.ensembleMember)) for s in message.segment),
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata=tuple((entry.key, entry.value) for entry in message.customMetadata),
        ctoken=message.cToken if message.HasField("cToken") else None,
        format_version=version,
    )


def _encode_v1(metadata: LedgerMetadata) -> str:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size)]
    lines.append(str(metadata.length if metadata.is_closed else 0))
    lines += ["\t".join((str(s.first_entry_id), *s.ensemble)) for s in metadata.segments]
    match metadata.state:
        case LedgerState.OPEN:
            lines.append("")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_IN_RECOVERY_LAST_ENTRY}\tCLOSED")
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry_id}\tCLOSED")
    return "\n".join(lines)


def _decode_v1(body: str) -> LedgerMetadata:
    lines = [line for line in body.split("\n") if line]
    write_quorum, ensemble_size, length = (int(line) for line in lines[:3])
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    segments = []
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if rest != ["CLOSED"]:
            segments.append(Segment(int(first), tuple(rest)))
        elif int(first) == _IN_RECOVERY_LAST_ENTRY:
            state = LedgerState.IN_RECOVERY
        else:
            state, last_entry_id = LedgerState.CLOSED, int(first)
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        digest_type=DigestType.CRC32,
        segments=tuple(segments),
        state=state,
        length=length if state is LedgerState.CLOSED else 0,
        last_entry_id=last_entry_id,
        format_version=1,
    )


def _read_varint(data: bytes) -> tuple[int, int]:
    number = 0
    for at in range(5):  # a 32-bit length
        number |= (data[at] & 0x7F) << 7 * at
        if data[at] < 0x80:
            return number, at + 1
    raise ValueError("a length of more than five bytes")


def ledger_path(root: str, ledger_id: int) -> str:
    """The path of the record of *ledger_id*, in the hierarchical layout."""
    assert 0 <= ledger_id < 2**63
    if ledger_id < SHORT_ID_LIMIT:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(path: str) -> int | None:
    """The id of the ledger whose record is at *path*; None if *path* is not that of a record."""
    match = _LONG_PATH.search(path) or _SHORT_PATH.search(path)
    return int("".join(match.groups())) if match else None
