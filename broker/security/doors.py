"""Who comes in at the ports of a broker: what a client shows becomes its caller, at one place for all ports.

Rules:

1. A client learns only that it is not authenticated; the reason is for the broker's log, at most one line a second.
   Neither holds credentials.
2. Checks of passwords run on threads, since they are made to be slow. Passwords that were right are remembered as
   keyed hashes, so that a client which sends one with each request costs one check.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.errors import NotAuthenticated, NotAuthorized, NotReady
from broker.settings.config import BrokerConfig
from broker.settings.groups.authentication import OPENID, PROVIDERS
from magnetar_core.runtime.clock import Clock
from magnetar_core.security.authentication import (
    BASIC,
    TLS,
    TOKEN,
    BasicProvider,
    InvalidRoles,
    Prepared,
    Provider,
    Providers,
    Shown,
    TlsProvider,
    TokenProvider,
)
from magnetar_core.security.basic import PasswordRules, parse_users
from magnetar_core.security.caller import Caller
from magnetar_core.security.identity import Identity, NotValid
from magnetar_core.security.sources import read_source
from magnetar_core.security.tls.contexts import server_context
from magnetar_core.security.tls.files import TlsFiles

if TYPE_CHECKING:  # their libraries take a tenth of a second to load, and most brokers need none of them
    from broker.security.openid_provider import OpenIdProvider

log = logging.getLogger(__name__)

# Passwords that are checked at the same time, each on a thread: bcrypt takes a core for a tenth of a second.
PASSWORD_CHECKS_AT_ONCE: Final = 2

# Password checks that wait for their turn: at 0.1 s each these are 50 s, longer than clients wait.
PASSWORD_CHECKS_WAITING_MAX: Final = 1_000

# Right passwords that are remembered, some 200 bytes each.
REMEMBERED_MAX: Final = 10_000

_LINE_S: Final = 1.0

REFUSAL: Final = "Failed to authenticate"
"""What Apache's brokers answer a client."""


class Admission(NamedTuple):
    """A client that was admitted."""

    caller: Caller
    method: str
    """The method by which it was authenticated; empty for an anonymous client."""
    identity: Identity
    """Its credentials may expire: those of a proxy's client if they were checked, else the client's own."""


class Doors:
    """Authenticates the clients of one broker."""

    def __init__(self, providers: Providers, clock: Clock, *, checks_original: bool = False) -> None:
        self._providers = providers
        self._clock = clock
        self._checks_original = checks_original
        self._slots = asyncio.Semaphore(PASSWORD_CHECKS_AT_ONCE)
        self._waiting = 0
        self._salt = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, Identity] = OrderedDict()
        self._next_line_s = float("-inf")
        self.successes: Counter[str] = Counter()
        """How many, by method; anonymous clients count as `anonymous`."""
        self.failures: Counter[str] = Counter()

    def now_s(self) -> float:
        """The time by which credentials expire."""
        return self._clock.wall_ms() / 1000

    async def identify(self, shown: Shown, address: str) -> tuple[Identity, str]:
        """Whose credentials they are, and by which method. Raises NotAuthenticated, NotReady."""
        provider = self._providers.provider(shown.method)
        method = shown.method if provider is not None else ""
        try:
            identity = self._providers.anonymous() if provider is None else await self._checked(provider, shown)
        except NotValid as error:
            self.failures[method or "anonymous"] += 1
            self._log_refusal(f"{address} is not authenticated: {error}")
            raise NotAuthenticated(REFUSAL) from None
        self.successes[method or "anonymous"] += 1
        return identity, method

    async def admit(
        self, shown: Shown, address: str, *, original_principal: str = "", original: Shown | None = None
    ) -> Admission:
        """The caller that a client is. A proxy names the principal for which it asks, and with *original* what that one
        showed. Raises NotAuthenticated, NotAuthorized, NotReady."""
        identity, method = await self.identify(shown, address)
        role = identity.role
        if self._checks_original and original_principal and original is not None:
            identity, method = await self.identify(original, address)
            original_principal = identity.role
        try:
            return Admission(self._providers.caller(role, original_principal), method, identity)
        except InvalidRoles as error:
            self._log_refusal(f"{address} is refused: {error}")
            raise NotAuthorized("Invalid roles.") from None

    async def admit_request(
        self,
        authorization: str | None,
        method: str | None,
        common_name: str | None,
        address: str,
        *,
        original_principal: str = "",
    ) -> Admission:
        """The same for a request with HTTP's header `Authorization`."""
        try:
            shown = self._providers.of_http(authorization, method, common_name)
        except NotValid as error:
            self.failures[BASIC] += 1
            self._log_refusal(f"{address} is not authenticated: {error}")
            raise NotAuthenticated(REFUSAL) from None
        return await self.admit(shown, address, original_principal=original_principal)

    # -------------------------------------------------------------------------------- checks

    async def _checked(self, provider: Provider, shown: Shown) -> Identity:
        """The identity of the shown credentials. A slow check, as of a password, is made on a thread, and its answer is
        remembered under a salted digest. Raises NotAuthenticated, NotReady."""
        if isinstance(provider, Prepared):
            await provider.prepare(shown)
        if not provider.is_slow:
            return provider.identity(shown, self.now_s())
        key = hmac.digest(self._salt, shown.data, hashlib.sha256)
        identity = self._remembered.get(key)
        if identity is not None:
            self._remembered.move_to_end(key)
            return identity
        if self._waiting >= PASSWORD_CHECKS_WAITING_MAX:
            raise NotReady("too many passwords wait to be checked; try again later")
        self._waiting += 1
        try:
            async with self._slots:
                identity = await asyncio.to_thread(provider.identity, shown, self.now_s())
        finally:
            self._waiting -= 1
        self._remembered[key] = identity
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return identity

    def _log_refusal(self, text: str) -> None:
        now_s = self._clock.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            log.warning("%s", text)


def port_context(config: BrokerConfig) -> Callable[[TlsFiles], ssl.SSLContext]:
    """Makes the context of the broker's ports from files: a client's certificate is verified if it shows one."""

    def make(files: TlsFiles) -> ssl.SSLContext:
        context = server_context(files, client_certificates=bool(files.authorities))
        if files.authorities and not config.tls_client_required:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    return make


def open_doors(config: BrokerConfig, clock: Clock) -> Doors | None:
    """The doors that *config* describes; None: every client is trusted. Reads keys and users.

    Raises ConfigurationError.
    """
    if not config.authentication_enabled:
        return None
    by_name: dict[str, Provider] = {}
    for name in config.authentication_providers:
        method = PROVIDERS[name]
        if name == OPENID:
            continue  # below: it stands before the tokens that have this broker's key
        if method == TOKEN:
            from broker.security.token_keys import TokenKeys

            by_name[method] = TokenProvider(TokenKeys(config, clock))
        elif method == BASIC:
            users = parse_users(read_source(config.basic_users, "basicAuthConf"), "basicAuthConf")
            by_name[method] = BasicProvider(PasswordRules(users))
        else:
            assert method == TLS, "the configuration admits no other provider"
            by_name[method] = TlsProvider()
    if OPENID in config.authentication_providers:
        by_name[TOKEN] = _openid(config, clock, by_name.get(TOKEN))
    providers = Providers(by_name, anonymous_role=config.anonymous_role, proxy_roles=frozenset(config.proxy_roles))
    return Doors(providers, clock, checks_original=config.authenticate_original)


def _openid(config: BrokerConfig, clock: Clock, otherwise: Provider | None) -> "OpenIdProvider":
    from broker.security.openid_provider import IssuerKeys, KeyTimes, OpenIdProvider
    from magnetar_core.security.openid import OpenIdRules

    rules = OpenIdRules(
        config.openid_issuers,
        config.openid_audiences,
        claim=config.openid_claim,
        leeway_s=config.openid_leeway_s,
    )
    times = KeyTimes(
        refresh_s=config.openid_refresh_s,
        expiry_s=config.openid_expiry_s,
        miss_s=config.openid_miss_s,
        connect_s=config.openid_connect_ms / 1000,
        read_s=config.openid_read_ms / 1000,
    )
    return OpenIdProvider(rules, IssuerKeys(config.openid_key_files, times, config.openid_trusted, clock), otherwise)
