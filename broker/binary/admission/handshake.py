"""The handshake of a client connection where clients are authenticated, and the renewal of what expires. No IO.

CONNECT ──▶ its credentials are checked ──valid──▶ CONNECTED
                                        └─else───▶ ERROR, and the connection is closed

expired ──AUTH_CHALLENGE──▶ the client ──AUTH_RESPONSE──▶ valid, and the same role: goes on
    └─ at the next check still expired, or a client that cannot renew: closed
"""

import re
from typing import Final, Protocol

from broker.binary.admission.client_facts import ClientFacts
from broker.errors import NotAuthenticated
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar_core.security.authentication import Shown
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.security.identity import Identity

_T: Final = wire.BaseCommand

# By this text Java's clients know that they shall show new credentials, and not answer a question.
REFRESH: Final = b"PulsarAuthRefresh"

# Clients that are told the end of a terminated topic (`hears_the_end`): from this version of the protocol on, but those
# whose names match. One digit is looked at: behind a run of them the search would go over the rest once for each.
_END_VERSION: Final = 9
_CLOSES_AT_THE_END: Final = re.compile(r"pulsar[- ](cpp|c\+\+|go)\b|[\d.](?!.*incubating)", re.IGNORECASE)

# The longest version text of a client. It is reported for each of its producers and consumers.
CLIENT_VERSION_CHARS_MAX: Final = 256

# What clients sent before they named the method (`auth_method`).
_OLD_METHODS: Final = {wire.AuthMethodAthens: "athenz", wire.AuthMethodYcaV1: "ycav1"}


class Admitted(Protocol):
    """A client that was admitted."""

    @property
    def caller(self) -> Caller: ...

    @property
    def method(self) -> str: ...

    @property
    def identity(self) -> Identity: ...


class Doors(Protocol):
    """Checks credentials (`broker.security.doors.Doors`)."""

    def now_s(self) -> float: ...

    async def identify(self, shown: Shown, address: str) -> tuple[Identity, str]: ...

    async def admit(
        self, shown: Shown, address: str, *, original_principal: str = "", original: Shown | None = None
    ) -> Admitted: ...


def shown_by(connect: wire.CommandConnect, common_name: str | None) -> Shown:
    """What a client shows with its CONNECT."""
    method = connect.auth_method_name or _OLD_METHODS.get(connect.auth_method, "")
    return Shown(method, connect.auth_data, common_name)


class Login:
    """What one client has shown, and until when it is valid."""

    __slots__ = ("_admitted", "_can_renew", "_common_name", "_doors", "_expires_s", "_is_asked", "_is_proxied")

    def __init__(self, doors: Doors, common_name: str | None) -> None:
        self._doors = doors
        self._common_name = common_name
        self._admitted: Admitted | None = None
        self._expires_s: float | None = None
        self._can_renew = False
        self._is_proxied = False
        self._is_asked = False
        """Whether new credentials were asked for and have not come."""

    async def connect(self, connect: wire.CommandConnect, address: str) -> Caller:
        """The caller that sent *connect*. Raises NotAuthenticated, NotAuthorized, NotReady."""
        original = None
        if connect.HasField("original_auth_data") or connect.HasField("original_auth_method"):
            original = Shown(connect.original_auth_method, connect.original_auth_data.encode("utf-8"))
        admitted = await self._doors.admit(
            shown_by(connect, self._common_name),
            address,
            original_principal=connect.original_principal,
            original=original,
        )
        self._admitted = admitted
        self._expires_s = admitted.identity.expires_s
        self._can_renew = connect.feature_flags.supports_auth_refresh
        # A proxy cannot renew what its client did not let it pass on.
        self._is_proxied = admitted.caller.original is not None and admitted.identity.role == admitted.caller.role
        return admitted.caller

    def check(self) -> bytes | str | None:
        """One interval is over: a challenge to send, or why the connection has to end, or None.

        Called again and again while the connection lasts.
        """
        admitted = self._admitted
        if admitted is None or self._expires_s is None or self._doors.now_s() < self._expires_s:
            return None
        if not self._can_renew or self._is_proxied:
            return "its credentials have expired, and it cannot renew them"
        if self._is_asked:
            return "its credentials have expired, and it did not renew them in time"
        self._is_asked = True
        return command(
            _T.AUTH_CHALLENGE,
            challenge=wire.AuthData(auth_method_name=admitted.method, auth_data=REFRESH),
        )

    async def renew(self, response: wire.CommandAuthResponse, address: str) -> None:
        """Take the credentials that the client sent. Raises NotAuthenticated, NotReady; then the connection ends."""
        admitted = self._admitted
        if admitted is None or not self._is_asked:
            raise NotAuthenticated("credentials were sent that nobody asked for")
        shown = Shown(response.response.auth_method_name or admitted.method, response.response.auth_data)
        if shown.method != admitted.method:
            raise NotAuthenticated("the credentials are of another method than before")
        identity, _ = await self._doors.identify(shown._replace(common_name=self._common_name), address)
        if identity.role != admitted.identity.role:
            raise NotAuthenticated("the credentials are of another role than before")
        self._is_asked = False
        self._expires_s = identity.expires_s


def hears_the_end(connect: wire.CommandConnect) -> bool:
    """Whether a client may be told REACHED_END_OF_TOPIC. Apache's brokers tell all; the C++ client, and with it those
    of Python and Node, and Go's close their connection at it, and come again and again. Older C++ clients, as older
    ones of Java, say a bare number; Rust's says that of an early release."""
    if connect.feature_flags.supports_partial_producer:  # Java's
        return True
    return connect.protocol_version >= _END_VERSION and not _CLOSES_AT_THE_END.match(connect.client_version)


def facts_of(
    connect: wire.CommandConnect, address: str, version: int, *, keeps_broker_metadata: bool, caller: Caller = TRUSTED
) -> ClientFacts:
    """What is remembered of a client."""
    return ClientFacts(
        address,
        connect.client_version[:CLIENT_VERSION_CHARS_MAX],
        version,
        keeps_broker_metadata=keeps_broker_metadata,
        hears_the_end=hears_the_end(connect),
        caller=caller,
    )
