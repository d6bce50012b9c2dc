"""Calls that Apache's brokers serve and this one never will: each is refused with a text that names it.

What is neither here nor served is answered with 501 (`not_there`).
"""

from typing import Final

from broker.admin.http import ADMIN, REFUSED_SUBJECTS, Refused, not_there, refusal_handler
from broker.admin.rights import OperationOf, Routes
from broker.security.authorization import Operation

_TOPIC: Final = ADMIN + "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE: Final = ADMIN + "/namespaces/{tenant}/{namespace}"
_OFFLOADING: Final = Refused(412, "Offloading is not served by this broker: all ledgers stay on bookies")
_MIGRATION: Final = Refused(412, "The migration of clusters is not served by this broker")
_BUNDLES: Final = Refused(
    501, "Bundles are not deleted by this broker; unload the bundle, or delete the namespace with all of them"
)
_BACKLOG: Final = Refused(
    501, "The backlog of a topic that is not open is not told by this broker; ask for …/stats, which opens it"
)
_SHUTDOWN: Final = Refused(501, "This broker is not stopped over HTTP; send its process a signal")
# An Apache broker without webSocketServiceEnabled answers 404, too.
_WEB_SOCKET: Final = Refused(404, "WebSocket is not served by this broker; use a client of Pulsar, or gRPC")
_REST_MESSAGES: Final = Refused(
    501, "Messages are not taken or given over REST by this broker; use a client of Pulsar, or gRPC"
)

REFUSED_CALLS: Final[tuple[tuple[str, str, Refused, OperationOf], ...]] = (
    ("PUT", _TOPIC + "/offload", _OFFLOADING, Operation.OFFLOAD),
    ("GET", _TOPIC + "/backlog", _BACKLOG, Operation.BACKLOG_SIZE),
    ("GET", _NAMESPACE + "/scanOffloadedLedgers", _OFFLOADING, Operation.READ_POLICY),
    ("POST", _NAMESPACE + "/migration", _MIGRATION, Operation.WRITE_POLICY),
    ("POST", ADMIN + "/clusters/{cluster}/migrate", _MIGRATION, Operation.CLUSTER),
    ("DELETE", _NAMESPACE + "/{bundle:0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}}", _BUNDLES, Operation.DELETE_NAMESPACE),
    ("POST", ADMIN + "/brokers/shutdown", _SHUTDOWN, Operation.BROKER),
    ("*", "/ws/{rest:.*}", _WEB_SOCKET, Operation.ASK_BROKER),
    ("*", "/topics/{rest:.*}", _REST_MESSAGES, Operation.ASK_BROKER),
)
"""Method, path, the refusal, and the right that a caller needs to see it."""


class Refusals:
    """Routes of refusals. The first route that matches is taken."""

    def add_routes(self, routes: Routes) -> None:
        """Add the refusals that have to stand before the routes that take any name."""
        for method, path, refused, operation in REFUSED_CALLS:
            routes.on(method, path, refusal_handler(refused), operation)

    def add_last(self, routes: Routes) -> None:
        """Add the refusals for all that is left below `/admin`."""
        for name, refused in REFUSED_SUBJECTS.items():
            routes.any(f"/admin/{{version}}/{name}/{{rest:.*}}", refusal_handler(refused), Operation.ASK_BROKER)
        routes.any("/admin/{rest:.*}", not_there, Operation.ASK_BROKER)
