"""Which of the processes of a service answer a call to its one HTTP address. No IO.

    way          answered by
    ANY          the first process that runs; where it redirects to another one of the service, that one
    ALL          every process; one that is not well makes the answer
    METRICS      every process, as one text
    MERGED       every process, as one JSON
    NAMED        the process whose name is in the path
    ONE          the bookie that `?bookie=ID` names; a read without it is answered by all of them, as an object with a
                 member for each; what changes something is refused without it (400)
    FIRST        process 0, which runs auto-recovery

A broker is any broker: what concerns a topic is redirected to its owner, as in every cluster. A bookie is not: most of
its calls are about itself.
"""

import re
from enum import Enum, auto
from typing import Final


class Way(Enum):
    """Who answers."""

    ANY = auto()
    ALL = auto()
    METRICS = auto()
    MERGED = auto()
    NAMED = auto()
    ONE = auto()
    FIRST = auto()


READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_BROKERS_ALL: Final = frozenset(
    {"/status.html", "/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/admin/v2/brokers/backlog-quota-check"}
)
_BROKERS_MERGED: Final = frozenset({"/admin/v2/broker-stats/topics", "/admin/v2/broker-stats/metrics"})
_NAMED: Final = re.compile(r"/admin/v2/brokers/[^/]+/([^/]+)/ownedNamespaces/?")

# Calls of a bookie's HTTP that are answered from the metadata store, or by all bookies of the cluster.
_OF_CLUSTER: Final = ("bookie/cluster_info", "bookie/list_bookies", "bookie/list_bookie_info", "bookie/cookies")
_API: Final = "/api/v1/"


def broker_way(method: str, path: str) -> Way:
    """Who answers a call to the HTTP of a service of brokers."""
    plain = path.rstrip("/") or "/"
    if plain == "/metrics":
        return Way.METRICS
    if plain in _BROKERS_ALL:
        return Way.ALL
    if plain in _BROKERS_MERGED and method in READING:
        return Way.MERGED
    return Way.NAMED if _NAMED.fullmatch(path) else Way.ANY


def named_broker(path: str) -> str:
    """The broker (host:port of its HTTP) that a call of the way NAMED names."""
    match = _NAMED.fullmatch(path)
    assert match is not None, f"{path} does not name a broker"
    return match[1]


def bookie_way(method: str, path: str) -> Way:
    """Who answers a call to the HTTP of a service of bookies."""
    plain = path.rstrip("/")
    if plain == "/metrics":
        return Way.METRICS
    if plain in ("/heartbeat", f"{_API}bookie/is_ready"):
        return Way.ALL
    if not plain.startswith(_API):
        return Way.FIRST
    call = plain.removeprefix(_API)
    if call in _OF_CLUSTER or call.startswith("ledger/"):
        return Way.ANY
    if call.startswith("autorecovery/"):
        return Way.FIRST
    return Way.ONE
