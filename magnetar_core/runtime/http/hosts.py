"""Under which names the HTTP of a server that asks nobody for a token may be called. No IO.

A web page may have its own name point to this server ("DNS rebinding"). The browser of a person who can reach the port
then takes the server for the page's own: it sends what the page wants, and lets the page read the answer. Such
a call is recognized by the name in `Host`, which is the page's.

Rules:

1. An address, a name without a dot, one that ends in `.localhost` or `.internal`, and the names by which the server
   itself goes are nobody else's: calls under them are answered.
2. Where only this host reaches the listener, calls under other names are refused.
3. Elsewhere calls under other names are answered, since a server does not know all its names; but nothing is changed
   for a browser. (It names the page in `Origin` whenever a call changes something; programs do not send that.)
4. Where each caller shows who it is, names do not matter: a page of others has nothing to show.
"""

import ipaddress
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar_core.runtime.config import setting

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

# No names of the public are below these (RFC 6761; ICANN has set `.internal` aside). Containers call their host so.
_PRIVATE: Final = (".localhost", ".internal")

SETTING: Final = "httpServerNames"
"""The setting with further names, of all servers."""


def names_setting() -> Any:
    """The field with the further names."""
    return setting(
        SETTING,
        (),
        help="names by which the HTTP may be called where nobody is asked for a token, beside addresses, names without "
        "a dot and the advertised one; comma separated",
    )


def name_in(host: str) -> str:
    """The name or address in the header Host; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Whether only this host can reach a listener at *name*, which has no port."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class HostRules:
    """Which calls are refused for the name under which they come."""

    def __init__(self, names: Iterable[str] = (), *, is_local: bool = False, asks_callers: bool = False) -> None:
        """*names*: those of the server. *is_local*: only this host reaches the listener (rule 2). *asks_callers*: each
        caller shows who it is (rule 4)."""
        self._names = frozenset(name.strip().lower().rstrip(".") for name in names if name.strip())
        self._is_local = is_local
        self._asks_callers = asks_callers

    def refusal(self, method: str, host: str | None, origin: str | None) -> str | None:
        """Why a call is refused; None: it may be answered. *host*, *origin*: the headers, None if there is none."""
        if self._asks_callers or not host or self._is_ours(name_in(host)):
            return None
        if self._is_local or (origin is not None and method not in READING):
            return (
                f"Host {host[:200]!r} is not a name of this server: call it by its address, or add the name to "
                f"{SETTING} if it is yours"
            )
        return None

    def _is_ours(self, name: str) -> bool:
        if not name:
            return False
        if "." not in name or name.endswith(_PRIVATE) or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
