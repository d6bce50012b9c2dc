"""The value of a bookie's registration node, and what can be read from its id alone. No IO."""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.metadata.formats_pb2 import BookieServiceInfoFormat

BOOKIE_RPC: Final = "bookie-rpc"
TLS: Final = "tls"

READ_ONLY_REASON: Final = "readOnlyReason"
"""Property of a registration below `readonly`: the reason, as text for people. Apache's bookies do not set it."""

_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:\-_.]+")
_HOST_AND_PORT: Final = re.compile(r"(.+):(\d{1,5})")


class Endpoint(NamedTuple):
    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """The endpoints of a bookie: `bookie` (protocol bookie-rpc), and `httpserver` (http) where there is one."""

    endpoints: tuple[Endpoint, ...]
    properties: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        message = BookieServiceInfoFormat(properties=dict(self.properties))
        for endpoint in self.endpoints:
            message.endpoints.add(
                id=endpoint.id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
        return message.SerializeToString()

    def with_reason(self, text: str) -> "BookieServiceInfo":
        """A copy with the reason why the bookie is read-only; empty: without a reason."""
        if not text:
            return self
        return BookieServiceInfo(self.endpoints, (*self.properties, (READ_ONLY_REASON, text)))

    @property
    def read_only_reason(self) -> str:
        return dict(self.properties).get(READ_ONLY_REASON, "")

    @property
    def http_url(self) -> str | None:
        """Where its HTTP answers; None if it has none."""
        endpoint = next((endpoint for endpoint in self.endpoints if endpoint.protocol == "http"), None)
        if endpoint is None:
            return None
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return f"http://{host}:{endpoint.port}"

    @property
    def rpc(self) -> Endpoint | None:
        return next((e for e in self.endpoints if e.protocol == BOOKIE_RPC), None)


def bookie_endpoint(host: str, port: int, *, tls: bool = False) -> Endpoint:
    """The endpoint where a bookie answers clients; *tls*: it accepts START_TLS there."""
    return Endpoint("bookie", port, host, BOOKIE_RPC, extensions=(TLS,) if tls else ())


def http_endpoint(host: str, port: int) -> Endpoint:
    """The endpoint of a bookie's admin interface."""
    return Endpoint("httpserver", port, host, "http")


def decode_info(bookie_id: str, value: bytes) -> BookieServiceInfo | None:
    """Decode the registration of *bookie_id*.

    Old bookies register with an empty value. For them, and for a value that cannot be read, the address comes from
    an id of the form host:port. None if the id has another form.
    """
    if value:
        try:
            message = BookieServiceInfoFormat.FromString(value)
        except DecodeError:
            return info_of_id(bookie_id)
        return BookieServiceInfo(
            tuple(
                Endpoint(e.id, e.port, e.host, e.protocol, tuple(e.auth), tuple(e.extensions))
                for e in message.endpoints
            ),
            tuple(message.properties.items()),
        )
    return info_of_id(bookie_id)


def info_of_id(bookie_id: str) -> BookieServiceInfo | None:
    match = _HOST_AND_PORT.fullmatch(bookie_id)
    if match is None or not 0 < int(match[2]) < 65536:
        return None
    return BookieServiceInfo((bookie_endpoint(match[1], int(match[2])),))


def bookie_id_problem(bookie_id: str) -> str | None:
    """Why *bookie_id* cannot be a bookie id; None if it can."""
    if not _BOOKIE_ID.fullmatch(bookie_id):
        return f"bookie id {bookie_id!r} may only have letters, digits and : - _ ."
    if bookie_id in (".", ".."):
        return f"bookie id {bookie_id!r} cannot be the name of a node of the metadata store"
    if bookie_id == "readonly":
        return "bookie id readonly is the name of a node of every cluster"
    return None
