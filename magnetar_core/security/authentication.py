"""Who a client is, by what it shows: the providers of a server, asked in one place for all its ports. No IO, no clock.

    nothing shown, or by a method that is not there ──▶ the anonymous role; refused if there is none
    shown and valid                                 ──▶ its role
    shown and not valid                             ──▶ refused, even if there is an anonymous role

A proxy shows who it is, and for whom it asks (`original`): both are in the `Caller`. Only the roles in *proxy_roles*
may ask for others; they must, and not for another proxy.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from magnetar_core.security.basic import PasswordRules
from magnetar_core.security.caller import Caller
from magnetar_core.security.identity import Identity, NotValid

TOKEN: Final = "token"
BASIC: Final = "basic"
TLS: Final = "tls"


class Shown(NamedTuple):
    """What a client shows of itself."""

    method: str = ""
    """`token`, `basic`, `tls` or another name; empty: the client names none."""
    data: bytes = b""
    common_name: str | None = None
    """The name in the client certificate that the TLS handshake verified."""


class Provider(Protocol):
    """Checks one kind of credentials."""

    @property
    def is_slow(self) -> bool:
        """Whether a check takes longer than the event loop may be held up."""
        ...

    def identity(self, shown: Shown, now_s: float) -> Identity:
        """Raises NotValid."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A provider that may have to ask others before it can check."""

    async def prepare(self, shown: Shown) -> None:
        """Call before `identity` with the same *shown*. Raises NotValid; any other error is the server's."""
        ...


class TokenCheck(Protocol):
    """What knows the keys of tokens."""

    def identity(self, token: bytes, now_s: float) -> Identity:
        """The identity that the token proves at *now_s* (seconds since 1970). Raises NotValid."""


class TokenProvider:
    """Tokens (`AuthenticationProviderToken`)."""

    is_slow: Final = False

    def __init__(self, rules: TokenCheck) -> None:
        self._rules = rules

    def identity(self, shown: Shown, now_s: float) -> Identity:
        return self._rules.identity(shown.data, now_s)


class BasicProvider:
    """Users and passwords (`AuthenticationProviderBasic`)."""

    is_slow: Final = True

    def __init__(self, rules: PasswordRules) -> None:
        self._rules = rules

    def identity(self, shown: Shown, now_s: float) -> Identity:
        return self._rules.identity(shown.data)


class TlsProvider:
    """Client certificates (`AuthenticationProviderTls`): the role is the CN."""

    is_slow: Final = False

    def identity(self, shown: Shown, now_s: float) -> Identity:
        if shown.common_name is None:
            raise NotValid("no client certificate with a common name (CN) was shown over TLS")
        return Identity(shown.common_name)


class InvalidRoles(NotValid):
    """The caller's own role and the one it asks for do not go together."""


class Providers:
    """The providers of one server, by method."""

    def __init__(
        self, providers: Mapping[str, Provider], *, anonymous_role: str = "", proxy_roles: frozenset[str] = frozenset()
    ) -> None:
        self._providers = dict(providers)
        self._anonymous_role = anonymous_role
        self._proxy_roles = proxy_roles

    def provider(self, method: str) -> Provider | None:
        """The provider that checks *method*; None: a client that names it counts as one that shows nothing."""
        return self._providers.get(method)

    def anonymous(self) -> Identity:
        """The identity of a client that shows nothing. Raises NotValid if there is none."""
        if not self._anonymous_role:
            methods = ", ".join(sorted(self._providers))
            raise NotValid(f"no credentials were shown; this server takes {methods}, and has no anonymousUserRole")
        return Identity(self._anonymous_role)

    def of_http(self, authorization: str | None, method: str | None, common_name: str | None) -> Shown:
        """What a request shows: the header `Authorization`, Apache's header with the name of the method, the name in
        the client certificate. Raises NotValid if the header cannot be read."""
        scheme, _, value = (authorization or "").strip().partition(" ")
        value = value.strip()
        wanted = (method or "").strip().lower()
        if scheme.lower() == "bearer" and TOKEN in self._providers and wanted in ("", TOKEN):
            return Shown(TOKEN, value.encode("utf-8", "surrogateescape"), common_name)
        if scheme.lower() == "basic" and BASIC in self._providers and wanted in ("", BASIC):
            try:
                data = base64.b64decode(value.encode("ascii"), validate=True)
            except (ValueError, binascii.Error):
                raise NotValid("the header Authorization: Basic is not base64") from None
            return Shown(BASIC, data, common_name)
        if common_name is not None and TLS in self._providers and wanted in ("", TLS):
            return Shown(TLS, b"", common_name)
        if wanted in self._providers:  # it names the method and shows nothing for it
            return Shown(wanted, b"", common_name)
        return Shown()

    def caller(self, role: str, original: str | None) -> Caller:
        """The caller with its own *role*, which asks for *original*, if anything. Raises InvalidRoles."""
        original = (original or "").strip() or None
        if role in self._proxy_roles:
            if original is None:
                raise InvalidRoles(f"the proxy {role} does not say for whom it asks")
            if original in self._proxy_roles:
                raise InvalidRoles(f"the proxy {role} asks for another proxy, {original}")
            return Caller(role, original)
        if original is not None and original != role:
            raise InvalidRoles(f"{role} asks for {original} and is not among proxyRoles")
        return Caller(role)
