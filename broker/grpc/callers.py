"""As whom a call over gRPC is authenticated: by its metadata `authorization`, or by its client certificate.

A proxy (`proxyRoles`) says in the metadata `x-original-principal` for whom it asks, as in the header of that name.

Each call runs in a task of its own; its caller is kept in the task's context.
"""

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any, Final

from broker.security.doors import Admission, Doors
from magnetar_core.security.caller import TRUSTED, Caller

_CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=TRUSTED)
_IS_SECURE: Final[ContextVar[bool]] = ContextVar("is_secure", default=False)


def caller_of(context: Any) -> Caller:
    """The caller of the call *context*, which must be the one that this task serves."""
    return _CALLER.get()


def source_of(context: Any) -> Hashable:
    """Whose turn it is when the call of this task waits for one (`broker.arrivals`)."""
    return caller_of(context).source(context.peer())


def is_secure() -> bool:
    """Whether the call that this task serves came over TLS."""
    return _IS_SECURE.get()


async def authenticate(doors: Doors | None, context: Any) -> Admission | None:
    """Find out who makes the call, for this task. None: every caller is trusted.

    Raises NotAuthenticated, NotAuthorized, NotReady.
    """
    peer = context.auth_context()
    _IS_SECURE.set(peer.get("transport_security_type", [b""])[0] == b"ssl")
    if doors is None:
        return None
    metadata = {str(name): value for name, value in context.invocation_metadata() or ()}
    names = peer.get("x509_common_name", ())
    admitted = await doors.admit_request(
        _text(metadata.get("authorization")),
        _text(metadata.get("x-pulsar-auth-method-name")),
        names[0].decode("utf-8", errors="replace") if names and names[0] else None,
        context.peer(),
        original_principal=_text(metadata.get("x-original-principal")) or "",
    )
    _CALLER.set(admitted.caller)
    return admitted


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
