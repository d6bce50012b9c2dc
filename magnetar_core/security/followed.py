"""Where a client goes on to when a server sends it elsewhere, with the credentials that it shows. No IO.

A server names another one: a redirect of HTTP does, and a lookup, which names the broker that serves a topic. The
credentials of a client are for its cluster.

Rules:

1. A client that came over TLS is never sent on to clear text, and nothing but HTTP and HTTPS is opened for a redirect.
2. Credentials go to hosts of the cluster as it was configured: those of the addresses that were given, those that the
   user allows, and those that a broker of the cluster lists when it is asked for all of them.
3. Where the user has named the authorities of certificates, and connections are over TLS, the certificate says whether
   a host is of the cluster.
4. All names of this machine's loopback are one host.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from magnetar_core.runtime.http.hosts import is_loopback, name_in

ANY: Final = "*"
"""Allows every host."""

_SCHEMES: Final = ("http", "https")


def host_of(address: str) -> str:
    """The host in `host:port` or in a URL; every loopback name is `localhost`. Empty if there is none."""
    name = name_in(address.partition("://")[2].partition("/")[0] if "://" in address else address)
    return "localhost" if is_loopback(name) else name


def redirect_problem(url: str, target: str) -> str | None:
    """Why a redirect from *url* to *target* is not followed whatever the hosts are (rule 1); None: it may be."""
    try:
        came, goes = urlsplit(url).scheme, urlsplit(target).scheme
    except ValueError:
        return "it is not a URL"
    if goes not in _SCHEMES:
        return "only http and https are opened"
    if came == "https" and goes == "http":
        return "it is without TLS"
    return None


class KnownHosts:
    """The hosts to which credentials may go (rule 2)."""

    def __init__(self, addresses: Iterable[str], allowed: Iterable[str] = ()) -> None:
        """*allowed*: names, `*.domain` for all in a domain, or `*`."""
        self._known = {host_of(address) for address in addresses} - {""}
        self._allowed = tuple(name.strip().lower() for name in allowed if name.strip())

    def learn(self, addresses: Iterable[str]) -> None:
        """A broker of the cluster has listed these."""
        self._known |= {host_of(address) for address in addresses} - {""}

    def has(self, address: str) -> bool:
        host = host_of(address)
        if not host:
            return False
        return host in self._known or any(
            name in (ANY, host) or (name.startswith("*.") and host.endswith(name[1:])) for name in self._allowed
        )

    def __str__(self) -> str:
        return ", ".join(sorted(self._known)) or "no host"
