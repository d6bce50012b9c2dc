"""Which clients are admitted at the bookie port. No IO: the TLS listener passes frames and certificates in.

    in clear ──START_TLS──▶ handshake ──▶ certificate ─┬─ admitted: everything as without TLS
        │                                              └─ not admitted: as below, to the end
        └─ any other request: admitted where TLS is only offered, else refused with EUA

A refused add or read of the second protocol gets its own answer with EUA; a refused request of the third protocol gets
header and status. Any other request of the second protocol ends the connection: its answers have no place for a
refusal.

The role of a client is in the OU of its certificate's subject: `OU=0:role1,role2;1:cluster`. Code 0 lists the roles;
the first one counts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import MalformedFrame

ROLE_PLUGIN: Final = "BookieAuthZFactory"
ROLE_FACTORIES: Final = ("org.apache.bookkeeper.tls.BookieAuthZFactory", ROLE_PLUGIN)
"""The values `bookieAuthProviderFactoryClass` may have: Apache's factory of roles in certificates."""

# START_TLS has 12 bytes; a context of a few names and values may follow. A longer frame is not a START_TLS, so no more
# bytes are gathered.
START_TLS_BYTES_MAX: Final = 1_024

_ROLES_CODE: Final = "0"
_OU_PART: Final = re.compile(r"([0-9]+):(.*)")

Subject: TypeAlias = Sequence[Sequence[tuple[str, str]]]
"""A certificate's subject as Python's ssl returns it: its relative names in order, each of (type, value) pairs."""


@dataclass(frozen=True, slots=True)
class Rules:
    """*demand_tls*: clients without TLS are refused. *roles*: the roles that are admitted; None: any certificate."""

    demand_tls: bool = False
    roles: frozenset[str] | None = None

    @property
    def admits_in_clear(self) -> bool:
        return not self.demand_tls and self.roles is None

    def refusal(self, certificate: dict[str, Any] | None) -> str | None:
        """Why a client with *certificate* (verified in the handshake) is not admitted; None if it is."""
        if self.roles is None:
            return None
        if not certificate:
            return "it showed no certificate, where its role would be"
        role = role_of(certificate.get("subject", ()))
        if role is None:
            return "the subject of its certificate has no role (OU=0:role)"
        if role not in self.roles:
            return f"its role {role!r} is not among authorizedRoles ({', '.join(sorted(self.roles))})"
        return None


def role_of(subject: Subject) -> str | None:
    """The role in the first OU of *subject*; None if there is none."""
    for relative in subject:
        for kind, value in relative:
            if kind == "organizationalUnitName":
                return _role_in(value)
    return None


def _role_in(unit: str) -> str | None:
    roles = ""
    for part in unit.split(";"):
        match = _OU_PART.match(part)
        if match is not None and match[1] == _ROLES_CODE:
            roles = match[2]  # the last one counts, as in Apache's map
    return roles.split(",")[0].strip() or None


def is_start_tls(frame: memoryview) -> int | None:
    """The transaction id, if *frame* asks for TLS."""
    if not v3.is_v3(frame) or len(frame) > START_TLS_BYTES_MAX:
        return None
    try:
        request = v3.parse_request(frame)
    except MalformedFrame:
        return None
    if request.header.operation != v3.START_TLS or not request.HasField("startTLSRequest"):
        return None
    return request.header.txnId


def refusal_of(frame: memoryview, is_v2: bool) -> bytes:
    """The answer to a request of a client that is not admitted; *is_v2* once the second protocol was seen.

    Raises MalformedFrame where there is no answer but the end of the connection.
    """
    if not is_v2 and v3.is_v3(frame):
        header = v3.parse_request(frame).header
        status = v3.V3Error.EBADREQ if header.operation == v3.START_TLS else v3.V3Error.EUA
        return v3.frame_of(v3.response(header.operation, header.txnId, status))
    opcode, version, _, ledger_id, entry_id, _, _ = v2.parse_request(frame)
    if opcode == v2.ADD_ENTRY:
        return v2.add_response(v2.V2Error.EUA, ledger_id, entry_id, version)
    if opcode == v2.READ_ENTRY:
        return v2.read_response(v2.V2Error.EUA, ledger_id, entry_id, 0, version)
    raise MalformedFrame(f"a request with the opcode {opcode} of a client that is not admitted")
