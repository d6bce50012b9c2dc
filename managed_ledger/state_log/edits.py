"""The entries of a state log's ledgers, as bytes. No IO.

    ┌─────────────┬──────────┬──────────┬──────────────────┬───────────────────────┐
    │ version (1) │ kind (1) │ term (8) │ first number (8) │ name of the leader    │   kind 1: begins each ledger
    └─────────────┴──────────┴──────────┴──────────────────┴───────────────────────┘
    ┌─────────────┬──────────┬────────────┬─────────────┬───────────┬────────────┬─────────────┐
    │ version (1) │ kind (1) │ number (8) │ time ms (8) │ since (8) │ token (16) │ the edit    │   kind 2: an edit
    └─────────────┴──────────┴────────────┴─────────────┴───────────┴────────────┴─────────────┘
    ┌─────────────┬──────────┬────────────┐
    │ version (1) │ kind (1) │ number (8) │   kind 3: a marker; the edits up to this number come before it
    └─────────────┴──────────┴────────────┘

Big-endian. The version is 1. Edits of a log are numbered from 1, without a gap over all of its ledgers. The checksum
is that of BookKeeper's entry around it.

*since* and *token* name a proposal: the token is drawn, and since is the number of an edit that was applied before the
token was made. An edit whose token was seen among the `TOKENS_KEPT` edits before it is not applied again (I125); one
whose `since` is further back than that is not applied at all, since nobody knows whether it was.

A follower sees that an entry is confirmed only by a later one (BookKeeper sends the confirmation with the next entry).
So a leader that has nothing to write writes a marker.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from magnetar_core.runtime.types import MIB, START_NEWER, Buffer, Corruption
from managed_ledger.state_log.errors import EditRefused

VERSION: Final = 1
_START: Final = struct.Struct(">BB")
_HEADER: Final = struct.Struct(">BBQQ")
_EDIT: Final = struct.Struct(">BBQQQ16s")
_MARKER: Final = struct.Struct(">BBQ")
_KIND_HEADER: Final = 1
_KIND_EDIT: Final = 2
_KIND_MARKER: Final = 3

assert _EDIT.size == 42
assert _HEADER.size == 18

TOKEN_LENGTH: Final = 16

# Edits after which a token is forgotten. 10,000 tokens are about 2 MB of memory and 240 KB of each snapshot; a client
# that retries for longer than 10,000 edits of all clients take gets the error that the outcome is not known.
TOKENS_KEPT: Final = 10_000

# Bytes of one edit. A larger one would not fit into bookies' frames (5 MiB), and it would hold up those behind it.
EDIT_BYTES_MAX: Final = 4 * MIB


class Token(NamedTuple):
    """Names one proposal, so that proposing it again does not apply it again (I125)."""

    id: bytes
    """16 drawn bytes."""
    since: int
    """The number of an edit that was applied when the token was made."""


class Header(NamedTuple):
    """The first entry of a ledger."""

    term: int
    first_number: int
    """The number of the first edit of the ledger."""
    leader: str


class Edit(NamedTuple):
    """One numbered change."""

    number: int
    time_ms: int
    """The leader's clock when it was proposed, in milliseconds since 1970; never less than that of an earlier edit."""
    token: Token
    payload: bytes


class Marker(NamedTuple):
    """An entry without content, whose presence shows that the entries before it are confirmed."""

    number: int
    """The number of the last edit before it."""


Record: TypeAlias = Header | Edit | Marker


def encode(record: Record) -> bytes:
    """Raises EditRefused for an edit beyond EDIT_BYTES_MAX."""
    match record:
        case Header(term, first_number, leader):
            return _HEADER.pack(VERSION, _KIND_HEADER, term, first_number) + leader.encode()
        case Marker(number):
            return _MARKER.pack(VERSION, _KIND_MARKER, number)
        case Edit(number, time_ms, token, payload):
            if len(payload) > EDIT_BYTES_MAX:
                raise EditRefused(f"an edit of {len(payload)} bytes is too large; at most {EDIT_BYTES_MAX} are taken")
            assert len(token.id) == TOKEN_LENGTH, token
            return _EDIT.pack(VERSION, _KIND_EDIT, number, time_ms, token.since, token.id) + payload


def decode(data: Buffer, place: str) -> Record:
    """Raises Corruption, which names *place*."""
    view = memoryview(data)
    if len(view) < _START.size:
        raise Corruption(f"{place}: {len(view)} bytes are no entry of a state log")
    version, kind = _START.unpack_from(view)
    if version != VERSION:
        raise Corruption(f"{place}: version {version} of the format, expected {VERSION}; {START_NEWER}")
    sizes = {_KIND_HEADER: _HEADER.size, _KIND_EDIT: _EDIT.size, _KIND_MARKER: _MARKER.size}
    if kind not in sizes:
        raise Corruption(f"{place}: kind {kind}, expected one of {sorted(sizes)}")
    if len(view) < sizes[kind] or (kind == _KIND_MARKER and len(view) != _MARKER.size):
        raise Corruption(f"{place}: {len(view)} bytes, expected {sizes[kind]} for kind {kind}")
    if kind == _KIND_HEADER:
        _, _, term, first_number = _HEADER.unpack_from(view)
        try:
            return Header(term, first_number, str(view[_HEADER.size :], "utf-8"))
        except UnicodeDecodeError as error:
            raise Corruption(f"{place}: the name of the leader is not UTF-8") from error
    if kind == _KIND_MARKER:
        return Marker(_MARKER.unpack_from(view)[2])
    _, _, number, time_ms, since, token = _EDIT.unpack_from(view)
    return Edit(number, time_ms, Token(token, since), bytes(view[_EDIT.size :]))
