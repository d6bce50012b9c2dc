"""What our broker answers otherwise than Apache's to the documentation's examples, and what it refuses, with reasons.

A key is a line of `doc_examples`.
"""

from typing import Final

_NO_PATH: Final = "the path is a mistake of the page: Apache's broker does not have it either, and says so with {}"
_OLDEST: Final = "ours tells whose the oldest message of the backlog is at once; Apache's broker looks once a minute"
_SNAPSHOT: Final = (
    "ours stores the state of de-duplication when a topic is unloaded, so the properties of its cursor are newer"
)
_ALL_OR_NONE: Final = (
    "the namespace has topics without that subscription: Apache's broker fails at the first one (500), ours clears it "
    "where it is"
)
_OWN_NAMESPACES: Final = "ours has no namespaces of its own for health checks and heartbeats"
_CHANGEABLE: Final = "ours lists what may change while it runs; Apache's list has settings of Java's too"

DIFFERENT: Final[dict[str, str]] = {
    "topics stats persistent://<t>/goods/books": _OLDEST,
    "topics stats persistent://<t>/goods/books --get-precise-backlog": _OLDEST,
    "topics stats-internal persistent://<t>/goods/books": _SNAPSHOT,
    "GET /admin/v2/persistent/<t>/goods/books/stats": _OLDEST,
    "GET /admin/v2/persistent/<t>/goods/books/internalStats": _SNAPSHOT,
    "namespaces clear-backlog --sub readers <t>/goods": _ALL_OR_NONE,
    "namespaces clear-backlog --bundle 0x00000000_0xffffffff --sub readers <t>/goods": _ALL_OR_NONE,
    "POST /admin/v2/namespaces/<t>/goods/clearBacklog/readers": _ALL_OR_NONE,
    "POST /admin/v2/namespaces/<t>/goods/0x00000000_0xffffffff/clearBacklog/readers": _ALL_OR_NONE,
    "brokers namespaces local --url <broker>": _OWN_NAMESPACES,
    "GET /admin/v2/brokers/local/<broker>/ownedNamespaces": _OWN_NAMESPACES,
    "brokers list-dynamic-config": _CHANGEABLE,
    "GET /admin/v2/brokers/configuration": _CHANGEABLE,
}

REFUSED: Final[dict[str, str]] = {
    "POST /admin/v2/persistent/<t>/goods/split": _NO_PATH.format(405),
    "DELETE /admin/v2/namespaces/<t>/goods/books/subscription/printers": _NO_PATH.format(404),
    "namespaces get-clusters <t>/local/rules":
        "a name with a cluster in it is of the admin API before Pulsar 2, which ours does not serve; Apache's broker "
        "refuses this call of it, too",
    'POST /admin/v2/namespaces/<t>/rules/entryFilters {"entryFilterNames": "none"}':
        "entry filters are Java classes; Apache's broker refuses one that it does not have, too",
}  # fmt: skip
