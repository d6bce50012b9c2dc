"""Tokens of OpenID issuers (`AuthenticationProviderOpenID`): the issuers' keys, fetched and kept.

    issuer ──▶ /.well-known/openid-configuration ──▶ jwks_uri ──▶ keys     or a file, by openIDIssuerKeyFiles

Rules:

1. Only issuers of the settings are asked; redirects are not followed, and answers have a limit.
2. One request at a time for each issuer; all that need its keys wait for that one.
3. Keys older than the refresh time are fetched again beside their use; older than the expiry they are not used.
4. A key id that is not known has the keys fetched again, unless they were just fetched: anybody can invent ids.
5. While an issuer does not answer and its keys are not known its clients get the answer to come again, not that
   they are wrong.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from broker.errors import NotReady
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MIB, ConfigurationError, Corruption
from magnetar_core.security.authentication import Provider, Shown
from magnetar_core.security.identity import Identity, NotValid
from magnetar_core.security.openid import Keys, OpenIdRules, key_address, parse_keys
from magnetar_core.security.sources import read_source
from magnetar_core.security.tls.contexts import usual_context

log = logging.getLogger(__name__)

# Of a discovery document, or a list of keys: both have a few KiB.
ANSWER_BYTES_MAX: Final = MIB

_DISCOVERY: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTimes:
    """Seconds."""

    refresh_s: int
    expiry_s: int
    miss_s: int
    """After a fetch: how long an unknown key id does not cause another."""
    connect_s: float
    read_s: float


@dataclass(slots=True)
class _Issuer:
    keys: Keys | None = None
    fetched_s: float = float("-inf")
    tried_s: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    refreshing: "asyncio.Task[None] | None" = None


class IssuerKeys:
    """The keys of some issuers."""

    def __init__(self, files: Mapping[str, str], times: KeyTimes, trusted: str, clock: Clock) -> None:
        """*files*: issuer → where its keys are read instead; *trusted*: file of the certificates that issuers have."""
        self._files = files
        self._times = times
        self._trusted = trusted
        self._clock = clock
        self._issuers: dict[str, _Issuer] = {}

    async def load(self, issuer: str, key_id: str) -> Keys:
        """The keys of *issuer*, with *key_id* among them if it has that one. Raises NotReady."""
        cached = self._issuers.setdefault(issuer, _Issuer())
        now_s = self._clock.monotonic()
        is_old = cached.keys is None or now_s - cached.fetched_s >= self._times.expiry_s
        is_missing = cached.keys is not None and key_id not in cached.keys
        if is_old or (is_missing and now_s - cached.tried_s >= self._times.miss_s):
            await self._fetch(issuer, cached, now_s)
        elif now_s - cached.fetched_s >= self._times.refresh_s and cached.refreshing is None:
            cached.refreshing = asyncio.create_task(self._refresh(issuer, cached, now_s))
        assert cached.keys is not None, "fetched, or raised"
        return cached.keys

    async def _refresh(self, issuer: str, cached: _Issuer, now_s: float) -> None:
        try:
            await self._fetch(issuer, cached, now_s)
        except NotReady as error:
            log.warning("%s; the keys of before are used", error)
        finally:
            cached.refreshing = None

    async def _fetch(self, issuer: str, cached: _Issuer, asked_s: float) -> None:
        """Fetch the keys. Raises NotReady, unless there are keys that can be used still."""
        async with cached.lock:
            if cached.tried_s > asked_s:  # somebody has done it meanwhile
                if cached.keys is None:
                    raise NotReady(f"the keys of the issuer {issuer} cannot be read now")
                return
            cached.tried_s = self._clock.monotonic()
            try:
                cached.keys = await self._read(issuer)
                cached.fetched_s = cached.tried_s
            except (Corruption, ConfigurationError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                if self._clock.monotonic() - cached.fetched_s >= self._times.expiry_s:
                    cached.keys = None
                text = f"the keys of the issuer {issuer} cannot be read: {type(error).__name__}: {error}"
                if cached.keys is None:
                    raise NotReady(text) from error
                log.warning("%s; those of before are used", text)

    async def _read(self, issuer: str) -> Keys:
        """The keys of an issuer, from its file or from where its discovery document says. Raises Corruption and what
        reading raises."""
        if issuer in self._files:
            data = await asyncio.to_thread(read_source, self._files[issuer], "openIDIssuerKeyFiles")
            return parse_keys(data, self._files[issuer])
        timeout = aiohttp.ClientTimeout(sock_connect=self._times.connect_s, sock_read=self._times.read_s,
                                        total=2 * (self._times.connect_s + self._times.read_s))  # fmt: skip
        context = usual_context(self._trusted)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            where = issuer.rstrip("/") + _DISCOVERY
            address = key_address(await _get(session, where), issuer, where)
            if issuer.startswith("https:") and not address.startswith("https:"):
                raise Corruption(f"{where}: the keys of an issuer with https are at {address!r:.200}")
            return parse_keys(await _get(session, address), address)


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """Raises aiohttp.ClientError, OSError, TimeoutError, Corruption."""
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise Corruption(f"{url} answers {answer.status}")
        data = await answer.content.read(ANSWER_BYTES_MAX + 1)
        while len(data) <= ANSWER_BYTES_MAX and (more := await answer.content.read(ANSWER_BYTES_MAX)):
            data += more
    if len(data) > ANSWER_BYTES_MAX:
        raise Corruption(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
    return data


class OpenIdProvider:
    """Implements `Provider` and `Prepared`."""

    is_slow: Final = False

    def __init__(self, rules: OpenIdRules, keys: IssuerKeys, otherwise: Provider | None = None) -> None:
        """*otherwise* checks tokens of other issuers."""
        self._rules = rules
        self._keys = keys
        self._otherwise = otherwise
        self._known: dict[str, Keys] = {}

    async def prepare(self, shown: Shown) -> None:
        """Have the keys of the token's issuer. Raises NotValid, NotReady."""
        try:
            claimed = self._rules.claimed(shown.data)
        except NotValid:
            if self._otherwise is None:
                raise
            return
        self._known[claimed.issuer] = await self._keys.load(claimed.issuer, claimed.key_id)

    def identity(self, shown: Shown, now_s: float) -> Identity:
        """Raises NotValid."""
        try:
            claimed = self._rules.claimed(shown.data)
        except NotValid:
            if self._otherwise is None:
                raise
            return self._otherwise.identity(shown, now_s)
        key = self._known.get(claimed.issuer, {}).get(claimed.key_id)
        if key is None:
            raise NotValid("the issuer of the token has no key with its id (kid)")
        return self._rules.identity(shown.data, key, now_s)
