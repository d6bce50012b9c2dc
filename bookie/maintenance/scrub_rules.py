"""The rate of the scrub, what makes an entry bad, and the stored place of a pass. No IO.

    a pass: every ledger in order of its id ──▶ every entry in order ──▶ digest ──▶ good, or repaired from another copy

Rules:

1. The rate is chosen so that a pass takes most of the period; the limits on bytes and entries take precedence. If they
   make a pass longer than the period, the status says so.
2. An entry is bad if it cannot be read, if its ids or its size are wrong, or if its digest is. Without a digest (DUMMY,
   or metadata that cannot be read) only the rest is checked.
3. The place is stored, so that a restart continues the pass there.
"""

from typing import Final, NamedTuple

from magnetar_core.bookkeeper.wire.entry import HEADER, EntryCodec
from magnetar_core.runtime.types import KIB, Buffer, Corruption

# With a lower rate, the pass of a small bookie would use its disk all day long.
BYTES_S_MIN: Final = 256 * KIB

# Share of the period that a pass aims at, so that a slow hour does not make it late.
_AIM: Final = 0.8


class ScrubPlace(NamedTuple):
    """The place of a pass: the next entry to check, and what was found so far."""

    started_ms: int
    ledger_id: int = 0
    entry_id: int = 0
    verified: int = 0
    repaired: int = 0
    lost: int = 0

    def encode(self) -> bytes:
        return b"1 %d %d %d %d %d %d\n" % self


def decode_place(data: bytes, path: str) -> ScrubPlace:
    """A stored place. Raises Corruption; the pass then begins again."""
    try:
        version, *numbers = map(int, data.split())
        if version != 1 or len(numbers) != 6 or min(numbers) < 0:
            raise ValueError
    except ValueError:
        raise Corruption(f"{path}: {data[:60]!r} is no place of a scrub") from None
    return ScrubPlace(*numbers)


class ScrubRate(NamedTuple):
    bytes_s: float
    is_late: bool
    """The limits do not let a pass end within the period."""


def rate_of(total_bytes: int, period_s: float, bytes_s_max: float) -> ScrubRate:
    needed = max(total_bytes / (period_s * _AIM), BYTES_S_MIN)
    return ScrubRate(min(needed, bytes_s_max), total_bytes / bytes_s_max > period_s)


def problem_of(entry: Buffer, ledger_id: int, entry_id: int, codec: EntryCodec | None) -> str | None:
    """What is wrong with a stored entry (rule 2); None if it is good."""
    if len(entry) < HEADER.size:
        return f"{len(entry)} bytes are no entry"
    ids = HEADER.unpack_from(entry)[:2]
    if ids != (ledger_id, entry_id):
        return f"it is ledger {ids[0]} entry {ids[1]}"
    if codec is not None:
        try:
            codec.open(entry, ledger_id, entry_id)
        except Corruption as error:
            return str(error)
    return None
