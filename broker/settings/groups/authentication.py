"""Who clients are, and what they may do. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.settings.groups.tls import PortTls
from magnetar_core.runtime.config import setting
from magnetar_core.security.authentication import BASIC, TLS, TOKEN
from magnetar_core.security.identity import DEFAULT_ALGORITHM, DEFAULT_CLAIM

PERMISSIONS_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"

OPENID: Final = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"

# Apache's classes of authentication providers, and the method that each of them checks.
PROVIDERS: Final = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": TOKEN,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": BASIC,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": TLS,
    OPENID: TOKEN,
}


@dataclass(frozen=True, kw_only=True)
class Authentication(PortTls):
    """Who clients are."""

    authentication_enabled: bool = setting("authenticationEnabled", False, help="clients must show who they are")
    authentication_providers: tuple[str, ...] = setting(
        "authenticationProviders", (), help=f"some of {', '.join(PROVIDERS)}"
    )
    anonymous_role: str = setting("anonymousUserRole", "", help="the role of clients that show nothing; empty: refused")
    proxy_roles: tuple[str, ...] = setting("proxyRoles", (), help="roles that ask for others: proxies")
    authenticate_original: bool = setting(
        "authenticateOriginalAuthData", True, help="what a proxy's client showed is checked here too"
    )
    authentication_refresh_s: int = setting(
        "authenticationRefreshCheckSeconds",
        60,
        help="how often it is checked whether clients' credentials have expired; they have as long to renew them",
    )
    authenticate_metrics: bool = setting(
        "authenticateMetricsEndpoint", False, help="/metrics is for authenticated clients only"
    )
    token_secret_key: str = setting(
        "tokenSecretKey", "", help="secret of HS tokens: file:///PATH, data:;base64,…, or a path", secret=True
    )
    token_public_key: str = setting(
        "tokenPublicKey",
        "",
        help="public key of RS and ES tokens (DER or PEM): file:///PATH, data:;base64,…, or a path",
    )
    token_secret_keys: tuple[str, ...] = setting(
        "tokenSecretKeys", (), help="files with secrets beside tokenSecretKey; one that is not there is no key"
    )
    token_public_keys: tuple[str, ...] = setting(
        "tokenPublicKeys", (), help="files with public keys beside tokenPublicKey; one that is not there is no key"
    )
    token_public_algorithm: str = setting("tokenPublicAlg", DEFAULT_ALGORITHM, help="algorithm of tokenPublicKey")
    token_claim: str = setting("tokenAuthClaim", "", help=f"claim that names the role; empty: {DEFAULT_CLAIM}")
    token_audience_claim: str = setting(
        "tokenAudienceClaim", "", help="claim that must hold tokenAudience; empty: not looked at"
    )
    token_leeway_s: int = setting(
        "tokenAllowedClockSkewSeconds", 0, help="tokens are taken so much before their time, and after it"
    )
    token_audience: str = setting("tokenAudience", "", help="audience that tokens must be for")
    openid_issuers: tuple[str, ...] = setting(
        "openIDAllowedTokenIssuers", (), help="issuers whose tokens AuthenticationProviderOpenID takes, comma separated"
    )
    openid_audiences: tuple[str, ...] = setting(
        "openIDAllowedAudiences", (), help="a token of theirs must be for one of these audiences"
    )
    openid_keys: tuple[str, ...] = setting(
        "openIDIssuerKeyFiles", (), help="issuer=PATH,…: the keys (JWKS) of these issuers are read from files"
    )
    openid_trusted: str = setting(
        "openIDTokenIssuerTrustCertsFilePath", "", help="certificates of the issuers; empty: those of this machine"
    )
    openid_claim: str = setting("openIDRoleClaim", DEFAULT_CLAIM, help="claim that names the role")
    openid_leeway_s: int = setting(
        "openIDAcceptedTimeLeewaySeconds", 0, help="tokens count as valid for so much longer, and earlier"
    )
    openid_refresh_s: int = setting(
        "openIDCacheRefreshAfterWriteSeconds", 18 * 60 * 60, help="keys are fetched again after so long", least=1
    )
    openid_expiry_s: int = setting(
        "openIDCacheExpirationSeconds", 24 * 60 * 60, help="keys are not used any longer", least=1
    )
    openid_miss_s: int = setting(
        "openIDKeyIdCacheMissRefreshSeconds",
        5 * 60,
        help="how long after a fetch an unknown key id does not cause another",
    )
    openid_connect_ms: int = setting(
        "openIDHttpConnectionTimeoutMillis", 10_000, help="to connect to an issuer", least=1
    )
    openid_read_ms: int = setting("openIDHttpReadTimeoutMillis", 10_000, help="for an answer of an issuer", least=1)
    openid_discovery: str = setting(
        "openIDFallbackDiscoveryMode", "DISABLED", help="DISABLED: no other issuer is ever asked"
    )
    openid_https: bool = setting(
        "openIDRequireIssuersUseHttps", True, help="issuers have addresses with https; false is for tests"
    )
    basic_users: str = setting(
        "basicAuthConf", "", help="users as `htpasswd` writes them: a path, data:;base64,… or base64", secret=True
    )

    @property
    def openid_key_files(self) -> dict[str, str]:
        """Issuer → where its keys are."""
        pairs = (pair.rpartition("=") for pair in self.openid_keys)
        return {issuer: path for issuer, _, path in pairs}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.authentication_enabled:
            return
        if not self.authentication_providers:
            yield f"authenticationEnabled=true needs authenticationProviders: some of {', '.join(PROVIDERS)}"
        for name in self.authentication_providers:
            if name not in PROVIDERS:
                yield f"authenticationProviders={name}: it is not there; there are {', '.join(PROVIDERS)}"
            elif name == OPENID:
                yield from self._openid_problems()
            elif PROVIDERS[name] == TOKEN:
                yield from self._token_problems()
            elif PROVIDERS[name] == TLS:
                yield from self._certificate_problems()
            elif not self.basic_users:
                yield f"{_class_of(BASIC)} needs basicAuthConf"

    def _token_problems(self) -> Iterator[str]:
        lists = {"tokenSecretKeys": self.token_secret_keys, "tokenPublicKeys": self.token_public_keys}
        if not (self.token_secret_key or self.token_public_key or any(lists.values())):
            yield f"{_class_of(TOKEN)} needs tokenSecretKey or tokenPublicKey"
        for name, sources in lists.items():
            # A key itself could not be told from the path of a file that is not there. It is not quoted.
            if any(not source.startswith(("/", "file:///")) for source in sources):
                yield f"{name}: expected the paths of files from the root, comma separated: /PATH or file:///PATH"
        if bool(self.token_audience_claim) != bool(self.token_audience):
            yield "tokenAudienceClaim and tokenAudience need each other; set both, or none"

    def _certificate_problems(self) -> Iterator[str]:
        if not self.has_tls:
            yield f"{_class_of(TLS)} needs a port with TLS: brokerServicePortTls or webServicePortTls"
        trust, path = self.tls_settings.trust
        if not path:
            yield f"{_class_of(TLS)} needs {trust}: who signs the certificates of clients"
        if self.tls_insecure:
            yield f"{_class_of(TLS)} and tlsAllowInsecureConnection exclude each other; choose one"

    def _openid_problems(self) -> Iterator[str]:
        if not self.openid_issuers:
            yield "AuthenticationProviderOpenID needs openIDAllowedTokenIssuers"
        if self.openid_discovery != "DISABLED":
            yield f"openIDFallbackDiscoveryMode={self.openid_discovery}: only DISABLED is there; name all issuers"
        if not self.openid_audiences:
            yield "AuthenticationProviderOpenID needs openIDAllowedAudiences"
        for issuer in self.openid_issuers:
            if self.openid_https and not issuer.startswith("https://"):
                yield f"openIDAllowedTokenIssuers={issuer}: https is needed (openIDRequireIssuersUseHttps)"
        for pair in self.openid_keys:
            issuer, separator, path = pair.rpartition("=")
            if not separator or not path or issuer not in self.openid_issuers:
                yield f"openIDIssuerKeyFiles={pair}: expected issuer=PATH, with one of openIDAllowedTokenIssuers"


@dataclass(frozen=True, kw_only=True)
class Authorization(Authentication):
    """What they may do."""

    authorization_enabled: bool = setting("authorizationEnabled", False, help="each request needs a permission")
    authorization_provider: str = setting(
        "authorizationProvider", PERMISSIONS_PROVIDER, help="only Pulsar's own rules are there"
    )
    super_users: tuple[str, ...] = setting("superUserRoles", (), help="roles that may do everything")
    role_wildcards: bool = setting(
        "authorizationAllowWildcardsMatching", False, help="a role in a permission may begin or end with *"
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.authorization_enabled and not self.authentication_enabled:
            yield (
                "authorizationEnabled=true needs authenticationEnabled=true: without it nobody knows whose request "
                "it is"
            )
        if self.authorization_provider != PERMISSIONS_PROVIDER:
            yield f"authorizationProvider={self.authorization_provider}: only {PERMISSIONS_PROVIDER} is there"


def _class_of(method: str) -> str:
    return next(name for name, known in PROVIDERS.items() if known == method).rpartition(".")[2]
