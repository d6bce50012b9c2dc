"""What a call of the management interface is: its address, who may make it, its body and its answers. No IO.

Each subject (lifecycle, cookies, callbacks, reports, …) is a class with a method `calls()`. The server makes routes of
them, and the OpenAPI document is made of the same objects, so that it always describes the interface that is served.

Rules:

1. A handler gets the body only after it was compared with `body`: members that are not known, missing or of another
   type were refused with 400 before.
2. A handler returns a value of JSON; what it refuses it raises as `Refused`, with one of the statuses of its call.
3. `Access.READ` changes nothing. `Access.WRITE` needs a token that may write, or, where no tokens are configured, a
   listener that only this host can reach.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from magnetar_core.bookkeeper.metadata.bookies.bookie_info import bookie_id_problem
from magnetar_core.runtime.types import MagnetarError

PREFIX: Final = "/manage/v1"
"""The prefix of the paths of all calls."""

JsonSchema = Mapping[str, Any]
"""A schema of JSON Schema 2020-12, as OpenAPI 3.1 uses it."""


class Access(StrEnum):
    """What a caller needs."""

    READ = "read"
    WRITE = "write"


class Caller(NamedTuple):
    """The program or person that makes a call."""

    name: str
    """The name of the token, or without tokens the address. It stands in states, reports and the log."""
    may_write: bool


class CheckedCall(NamedTuple):
    """One call, of which path, query and body were checked."""

    caller: Caller
    path: Mapping[str, str]
    """Parameters in the path."""
    query: Mapping[str, str]
    body: Mapping[str, Any]
    """Empty where the call has none."""


class Refused(MagnetarError):
    """An answer other than success: the text says what is wrong, and the way out."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        """*facts* stand in the answer beside the text, such as the ledgers that are in the way."""
        super().__init__(text)
        self.status = status
        self.facts = facts


Handler = Callable[[CheckedCall], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the interface."""

    method: str
    path: str
    """Below `PREFIX`, parameters in braces: `/bookies/{bookie}/state`."""
    name: str
    """The operation's id in the OpenAPI document: `getBookieState`."""
    subject: str
    summary: str
    access: Access
    handler: Handler
    answer: JsonSchema
    status: int = 200
    body: JsonSchema | None = None
    """A schema of type object that allows no other members (`schema.closed`); None: a body is ignored."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Name → what it means."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameter in the path → what it means; `bookie` may be left out."""
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Status → when; 400, 401, 403, 404 of unknown addresses, 413, 415, 429 of long calls and 503 may be left out."""
    is_long: bool = False
    """It reads all records of the cluster, so only a few such calls are answered at the same time."""

    @property
    def path_parameters(self) -> list[str]:
        """The names of the parameters in the path, in their order."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class Subject(Protocol):
    """Some calls that belong together."""

    def calls(self) -> Sequence[Call]: ...


def bookie_of(checked: CheckedCall) -> str:
    """The bookie that the path names. Raises Refused (400)."""
    return checked_bookie(checked.path["bookie"])


def checked_bookie(bookie_id: str) -> str:
    """*bookie_id*, if it can be one. Raises Refused (400)."""
    problem = bookie_id_problem(bookie_id)
    if problem is not None:
        raise Refused(400, problem)
    return bookie_id
