"""The caller for which this broker asks another one: its name goes with what is asked for it. No IO.

A broker shows its own credentials to another one, which are those of a super user. Without more a caller could have
things done by which it is refused itself.

Rules:

1. What is asked because of somebody's request names that caller in `HEADER`; what the broker does by itself (bundles it
   moves, a namespace it deletes as a whole) names nobody.
2. The broker that is asked takes the name from super users only, which could do the same without it; from others it is
   refused. The caller that is named then needs the right, as if it had come itself.
3. Each part of a path is encoded for itself (`segment`), and no part says where the path leads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote, quote_plus, unquote

from magnetar_core.security.caller import Caller

# Not Apache's X-Original-Principal, which its brokers refuse from everybody but proxies. They do not read this one.
HEADER: Final = "X-Magnetar-Caller"

_ASKING: Final[ContextVar[Caller | None]] = ContextVar("asking", default=None)


def ask_for(caller: Caller) -> None:
    """From here on the present task asks other brokers for *caller*."""
    _ASKING.set(None if caller.is_trusted else caller)


@contextmanager
def as_own_work() -> Iterator[None]:
    """What is asked inside is the broker's own work: the caller that caused it has the right to the whole of it."""
    former_value = _ASKING.set(None)
    try:
        yield
    finally:
        _ASKING.reset(former_value)


def headers() -> dict[str, str]:
    """What a request to another broker carries (rule 1)."""
    caller = _ASKING.get()
    if caller is None:
        return {}
    roles = [caller.role or ""] if caller.original is None else [caller.role or "", caller.original]
    return {HEADER: ",".join(quote(role, safe="") for role in roles)}


def named_in(text: str) -> Caller:
    """The caller that the header names."""
    role, comma, original = text.partition(",")
    return Caller(unquote(role) or None, unquote(original) if comma else None)


def segment(text: str) -> str:
    """*text* as one part of a path: `.` and `..` stay names too."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if text in (".", "..") else quoted


def encode_twice(text: str) -> str:
    """The name of a subscription as a part of a path: clients encode it once more than other names."""
    quoted = quote_plus(text)
    return segment(quoted.replace(".", "%2E") if text in (".", "..") else quoted)
