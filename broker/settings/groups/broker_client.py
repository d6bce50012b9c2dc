"""As whom a broker asks other brokers. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from broker.settings.groups.authentication import Authentication
from broker.settings.groups.tls import STORES
from magnetar_core.runtime.config import setting
from magnetar_core.security.authentication import BASIC, TLS, TOKEN
from magnetar_core.security.tls.files import PROTOCOLS
from magnetar_core.security.tls.settings import TlsSettings

# Apache's classes by which a client shows who it is, and their methods.
CLIENT_PLUGINS: Final = {
    "org.apache.pulsar.client.impl.auth.AuthenticationToken": TOKEN,
    "org.apache.pulsar.client.impl.auth.AuthenticationBasic": BASIC,
    "org.apache.pulsar.client.impl.auth.AuthenticationTls": TLS,
    "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls": TLS,
}

# The one of them whose certificate is in a key store.
KEY_STORE_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls"


@dataclass(frozen=True, kw_only=True)
class BrokerClient(Authentication):
    """As whom this broker asks others."""

    broker_client_plugin: str = setting(
        "brokerClientAuthenticationPlugin", "", help=f"nothing or one of {', '.join(CLIENT_PLUGINS)}"
    )
    broker_client_parameters: str = setting(
        "brokerClientAuthenticationParameters",
        "",
        help="token:TOKEN, file:///PATH, or JSON of userId and password, of tlsCertFile and tlsKeyFile, or of "
        "keyStorePath and keyStorePassword",
        secret=True,
    )
    broker_client_tls: bool = setting("brokerClientTlsEnabled", False, help="other brokers are asked over TLS")
    broker_client_protocols: tuple[str, ...] = setting(
        "brokerClientTlsProtocols", (), help=f"towards other brokers, some of {', '.join(PROTOCOLS)}; empty: all"
    )
    broker_client_ciphers: tuple[str, ...] = setting(
        "brokerClientTlsCiphers", (), help="towards other brokers, suites of TLS 1.2; empty: the library's choice"
    )
    broker_client_trusted: str = setting(
        "brokerClientTrustCertsFilePath", "", help="trusted certificates of other brokers, PEM; empty: the system's"
    )
    broker_client_certificate: str = setting(
        "brokerClientCertificateFilePath", "", help="certificate shown to other brokers"
    )
    broker_client_key: str = setting("brokerClientKeyFilePath", "", help="the key of that certificate")
    broker_client_with_key_store: bool = setting(
        "brokerClientTlsEnabledWithKeyStore", False, help="key stores (PKCS#12) instead of these PEM files"
    )
    broker_client_key_store_type: str = setting("brokerClientTlsKeyStoreType", "JKS", help=STORES)
    broker_client_key_store: str = setting(
        "brokerClientTlsKeyStore", "", help="certificate and key shown to other brokers; empty: none"
    )
    broker_client_key_store_password: str = setting(
        "brokerClientTlsKeyStorePassword", "", help="its password", secret=True
    )
    broker_client_trust_store_type: str = setting("brokerClientTlsTrustStoreType", "JKS", help=STORES)
    broker_client_trust_store: str = setting(
        "brokerClientTlsTrustStore", "", help="trusted certificates of other brokers; empty: the system's"
    )
    broker_client_trust_store_password: str = setting(
        "brokerClientTlsTrustStorePassword", "", help="its password", secret=True
    )
    broker_client_verify_hostname: bool = setting(
        "tlsHostnameVerificationEnabled", True, help="certificates of other brokers must name the host asked"
    )

    @property
    def client_tls_settings(self) -> TlsSettings:
        return replace(TlsSettings.of(self, "broker_client_"), refresh_s=self.tls_refresh_s)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self.client_tls_settings.store_type_problems()
        yield from self.client_tls_settings.suite_problems()
        if self.broker_client_plugin == KEY_STORE_PLUGIN and not self.broker_client_with_key_store:
            yield f"{KEY_STORE_PLUGIN} needs brokerClientTlsEnabledWithKeyStore=true"
        if self.authentication_enabled and self.broker_client_plugin not in ("", *CLIENT_PLUGINS):
            known = ", ".join(CLIENT_PLUGINS)
            yield f"brokerClientAuthenticationPlugin={self.broker_client_plugin}: expected one of {known}"
