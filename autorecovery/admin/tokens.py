"""Tokens of the management interface: the text of the file that lists them, and whose token a caller shows. No IO.

    # comments and empty lines
    prometheus read  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    deployer   write sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

The file has no secrets, only their SHA-256: tokens are random and long, so nobody finds one by trying. A name may have
several lines, so that a token can be replaced without a gap.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from autorecovery.admin.calls import Caller
from magnetar_core.runtime.types import ConfigurationError

# Each call is compared with all of them, a microsecond each.
TOKENS_MAX: Final = 1_000

_NAME: Final = re.compile(r"[A-Za-z0-9._@:-]{1,64}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")


class Role(StrEnum):
    """What the holder of a token may do; one that may write may read, too."""

    READ = "read"
    WRITE = "write"


class Entry(NamedTuple):
    """One line of the file."""

    name: str
    role: Role
    digest: bytes


class Tokens:
    """The tokens that are admitted."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def caller_of(self, token: str) -> Caller | None:
        """The caller with *token*; None: it is not in the file. Takes the same time wherever it stands there."""
        shown = _digest_of(token)
        caller: Caller | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, shown):
                caller = Caller(entry.name, entry.role is Role.WRITE)
        return caller


def name_problem(name: str) -> str | None:
    """Why *name* cannot stand in the file; None if it can."""
    if _NAME.fullmatch(name):
        return None
    return f"the name {name[:64]!r} may have 1 to 64 letters, digits and . _ @ : -"


def line_of(name: str, role: Role, token: str) -> str:
    """The line of the file for *token*."""
    assert name_problem(name) is None, name
    return f"{name} {role} sha256:{_digest_of(token).hex()}"


def parse_tokens(text: str, source: str) -> Tokens:
    """Raises ConfigurationError, which names every wrong line and repeats no digest."""
    entries: list[Entry] = []
    problems: list[str] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].split()
        if not line:
            continue
        where = f"{source} line {number}"
        if len(line) != 3:
            problems.append(f"{where}: {len(line)} words, expected: name role sha256:<64 hexadecimal digits>")
            continue
        name, role, digest = line
        if (problem := name_problem(name)) is not None:
            problems.append(f"{where}: {problem}")
        elif role not in tuple(Role):
            problems.append(f"{where}: the role {role[:20]!r} must be {' or '.join(Role)}")
        elif (match := _DIGEST.fullmatch(digest)) is None:
            problems.append(f"{where}: the last word must be sha256:<64 hexadecimal digits>")
        else:
            entries.append(Entry(name, Role(role), bytes.fromhex(match[1])))
    if len(entries) > TOKENS_MAX:
        problems.append(f"{source}: {len(entries)} tokens, at most {TOKENS_MAX} are allowed")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return Tokens(entries)


def _digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
