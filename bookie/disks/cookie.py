"""The cookie: which directories belong to which bookie of which cluster. No IO.

The file VERSION of every directory and the bookie's znode hold the same text:

    5                                     layout version; from 4 on protobuf's text form follows
    bookieHost: "127.0.0.1:3181"
    journalDir: "/data/journal"           joined by commas
    ledgerDirs: "1\\t/data/ledgers"        number and directories, joined by tabs
    instanceId: "4ef1deb4-…"              of the cluster
    indexDirs: …                          only where they are not the ledger directories

Rules:

1. A bookie without any cookie, in its directories and in the store, is new; its directories must be empty.
2. Otherwise all cookies must exist and be equal, or the bookie does not serve: a bookie with a wiped disk would answer
   "no such entry", and recoveries would cut off ledgers (I49).
3. Directories that an operator has moved differ by their paths only: all of them have a cookie of this bookie, there
   are as many as before, and in the same order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from google.protobuf import text_format

from bookie.storage.storage_pb2 import CookieFormat
from magnetar_core.runtime.types import START_NEWER, Corruption, MagnetarError

LAYOUT_VERSION: Final = 5
_LAYOUT_VERSION_TEXT: Final = 4
_LAYOUT_VERSION_LINES: Final = 3


class CookieMismatch(MagnetarError):
    """The directories are not those of this bookie, or some are missing, so it must not serve."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of a bookie and its directories."""

    bookie_id: str
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    instance_id: str

    def resolved(self, absolute: Callable[[str], str]) -> "Cookie":
        """This cookie with absolute paths. Apache's bookie writes those of its configuration, which may be relative."""
        return replace(
            self,
            journal_directories=tuple(map(absolute, self.journal_directories)),
            ledger_directories=tuple(map(absolute, self.ledger_directories)),
        )

    def encode(self) -> bytes:
        message = CookieFormat(
            bookieHost=self.bookie_id,
            journalDir=",".join(self.journal_directories),
            ledgerDirs="\t".join([str(len(self.ledger_directories)), *self.ledger_directories]),
            instanceId=self.instance_id,
        )
        return f"{LAYOUT_VERSION}\n{text_format.MessageToString(message)}".encode()


def decode(data: bytes, source: str) -> Cookie:
    """A cookie from its text; *source* names it in errors. Raises Corruption."""
    try:
        first, _, rest = data.decode("utf-8").partition("\n")
        version = int(first)
        if version == _LAYOUT_VERSION_LINES:
            host, journal, ledgers = rest.splitlines()[:3]
            return Cookie(host, tuple(journal.split(",")), _directories(ledgers), "")
        if version < _LAYOUT_VERSION_TEXT:
            raise ValueError(f"layout version {version}")
        if version > LAYOUT_VERSION:
            raise Corruption(f"{source}: layout version {version}; known are 3 to {LAYOUT_VERSION}; {START_NEWER}")
        message = text_format.Parse(rest, CookieFormat())
        ledger_directories = _directories(message.ledgerDirs)
        if message.indexDirs and _directories(message.indexDirs) != ledger_directories:
            raise ValueError("separate index directories are not supported")
    except (ValueError, text_format.ParseError) as error:
        raise Corruption(
            f"{source} is no cookie: {error}. The bookie's other directories and the metadata store have the same one: "
            "put it back from there"
        ) from None
    journal_directories = tuple(message.journalDir.split(","))
    return Cookie(message.bookieHost, journal_directories, ledger_directories, message.instanceId)


def _directories(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if int(count) != len(directories):
        raise ValueError(f"{count} directories announced, {len(directories)} there")
    return tuple(directories)


def is_new_bookie(
    expected: Cookie, stored: Cookie | None, on_disk: Mapping[str, Cookie | None], holds_data: Mapping[str, bool]
) -> bool:
    """Whether the bookie starts for the first time; the caller then writes its cookie everywhere.

    *stored* comes from the metadata store, *on_disk* and *holds_data* describe each directory. Raises CookieMismatch.
    """
    problems = list(_problems(expected, stored, on_disk, holds_data))
    former = _former_name(expected, on_disk)
    if problems and former and stored is None:
        raise CookieMismatch(
            f"bookie {expected.bookie_id} does not start: its directories are those of bookie {former}. If it is that "
            f"bookie, with another address or port (of which its name is made), set bookieId={former}: ledgers name it "
            "so, and it announces where it listens now. If it is another one, put back the disks that belong here"
        )
    if problems:
        raise CookieMismatch(
            f"bookie {expected.bookie_id} does not start, its directories do not belong to it:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nPut back the disks that belong here, or the settings that it had"
            + ("; if all of them were moved to these paths, start it once with --moved"
               if _differ_by_paths(expected, stored, on_disk) else "")
        )  # fmt: skip
    return stored is None


def _differ_by_paths(expected: Cookie, stored: Cookie | None, on_disk: Mapping[str, Cookie | None]) -> bool:
    try:
        return is_moved(expected, stored, on_disk)
    except CookieMismatch:
        return False


def is_moved(expected: Cookie, stored: Cookie | None, on_disk: Mapping[str, Cookie | None]) -> bool:
    """Whether all directories of a known bookie stand at other paths than its cookies say; the caller then writes new
    ones. Some may be new already, from a start that was cut short. Raises CookieMismatch where they are not all of
    the directories of this bookie."""
    if stored is None:
        return False  # `is_new_bookie` says whether it is new
    problems = [f"{place} has no cookie" for place, cookie in on_disk.items() if cookie is None]
    for place, cookie in {"the metadata store": stored, **on_disk}.items():
        if cookie is not None:
            problems += _differences(_at_the_same_places(expected, cookie), cookie, place)
            if cookie not in (stored, expected) and not problems:
                problems.append(f"{place} belongs to other directories: {_field_text(cookie.ledger_directories)}")
    if problems:
        raise CookieMismatch(
            f"bookie {expected.bookie_id} does not start: these are not the directories that it had, moved:\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )
    return any(cookie != expected for cookie in (stored, *on_disk.values()))


def _at_the_same_places(expected: Cookie, actual: Cookie) -> Cookie:
    """*expected* with the paths of *actual*, as far as there are as many: so many of each kind have to be there."""
    if len(expected.journal_directories) == len(actual.journal_directories):
        expected = replace(expected, journal_directories=actual.journal_directories)
    if len(expected.ledger_directories) == len(actual.ledger_directories):
        expected = replace(expected, ledger_directories=actual.ledger_directories)
    return expected


def order_problem(directories: Sequence[str], ledgers: Sequence[Iterable[int]]) -> str:
    """Why *directories*, each with some of its ledgers, are not in the order in which they were; empty if nothing
    speaks against it. A ledger's directory is its number modulo the number of directories."""
    for number, (directory, ids) in enumerate(zip(directories, ledgers, strict=True)):
        for ledger_id in ids:
            if ledger_id % len(directories) != number:
                return (
                    f"{directory} was number {ledger_id % len(directories) + 1} of ledgerDirectories, and is number "
                    f"{number + 1}; name them in the order that they had"
                )
    return ""


def _former_name(expected: Cookie, on_disk: Mapping[str, Cookie | None]) -> str:
    """The name of the bookie to which all these directories belong, if it differs by its name only; else empty."""
    cookies = set(on_disk.values())
    former = cookies.pop() if len(cookies) == 1 else None
    if former is None or former.bookie_id == expected.bookie_id:
        return ""
    renamed = replace(former, bookie_id=expected.bookie_id)
    if not former.instance_id:  # an old cookie of Apache's says nothing of the cluster
        renamed = replace(renamed, instance_id=expected.instance_id)
    return former.bookie_id if renamed == expected else ""


def is_emptied(
    expected: Cookie, stored: Cookie | None, on_disk: Mapping[str, Cookie | None], holds_data: Mapping[str, bool]
) -> bool:
    """Whether the bookie is known and its cookies match, but some directories are empty: a disk was replaced, or
    wiped."""
    if stored is None or all(on_disk.values()):
        return False
    if any(cookie is None and holds_data[directory] for directory, cookie in on_disk.items()):
        return False
    there = {"the metadata store": stored, **on_disk}
    return not any(list(_differences(expected, cookie, place)) for place, cookie in there.items() if cookie is not None)


def _problems(
    expected: Cookie, stored: Cookie | None, on_disk: Mapping[str, Cookie | None], holds_data: Mapping[str, bool]
) -> Iterator[str]:
    for source, cookie in {"the metadata store": stored, **on_disk}.items():
        if cookie is not None:
            yield from _differences(expected, cookie, source)
    if stored is not None:
        for directory, cookie in on_disk.items():
            if cookie is None:
                yield (
                    f"{directory} has no cookie, but the bookie is known: a disk is missing or was emptied. Mount it, "
                    "let the data be copied elsewhere (decommission) before the bookie starts anew, or set "
                    "dataIntegrityChecking=true, so that it copies back what it lost before it denies to have it"
                )
        return
    # The store has no cookie. Cookies on disk without data are left from a first start that was interrupted.
    for directory, has_data in holds_data.items():
        if has_data and any(on_disk.values()):
            yield (
                f"{directory} holds data of a bookie that the metadata store does not know (any more): was its cookie "
                "deleted, is metadataServiceUri another cluster's, or are the metadata older than the bookie "
                "(docs/production.md)?"
            )
        elif has_data:
            yield f"{directory} is not empty, and there is no cookie: not a directory for a new bookie"


def _differences(expected: Cookie, actual: Cookie, source: str) -> Iterator[str]:
    for name, wanted, there in (
        ("bookie id", expected.bookie_id, actual.bookie_id),
        ("journal directories", expected.journal_directories, actual.journal_directories),
        ("ledger directories", expected.ledger_directories, actual.ledger_directories),
        ("cluster", expected.instance_id, actual.instance_id),
    ):
        if wanted != there and not (name == "cluster" and not there):
            yield f"{source}: {name} {_field_text(there)}, expected {_field_text(wanted)}"


def _field_text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
