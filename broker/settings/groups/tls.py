"""TLS at a broker's ports, and to the bookies. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from broker.settings.groups.ports import Ports
from magnetar_core.runtime.config import Group, setting
from magnetar_core.security.tls.files import APACHE_FACTORY, PROTOCOLS, REFRESH_S, STORE_TYPES, TlsFiles
from magnetar_core.security.tls.settings import TlsSettings

STORES: Final = " or ".join(STORE_TYPES)


@dataclass(frozen=True, kw_only=True)
class PortTls(Ports):
    """TLS at the ports."""

    tls_certificate: str = setting("tlsCertificateFilePath", "", help="the broker's certificate and its chain, PEM")
    tls_key: str = setting("tlsKeyFilePath", "", help="the key of that certificate, PEM")
    tls_trusted: str = setting(
        "tlsTrustCertsFilePath",
        "",
        help="trusted certificates, PEM: a client's certificate needs one of them behind it",
    )
    tls_with_key_store: bool = setting(
        "tlsEnabledWithKeyStore", False, help="Java's key stores (PKCS#12) are read instead of these PEM files"
    )
    tls_key_store_type: str = setting("tlsKeyStoreType", "JKS", help=f"{STORES}: the file itself says what it is")
    tls_key_store: str = setting("tlsKeyStore", "", help="the broker's key with its certificate and its chain")
    tls_key_store_password: str = setting("tlsKeyStorePassword", "", help="its password", secret=True)
    tls_trust_store_type: str = setting("tlsTrustStoreType", "JKS", help=STORES)
    tls_trust_store: str = setting("tlsTrustStore", "", help="trusted certificates, as tlsTrustCertsFilePath")
    tls_trust_store_password: str = setting("tlsTrustStorePassword", "", help="its password", secret=True)
    tls_client_required: bool = setting(
        "tlsRequireTrustedClientCertOnConnect", False, help="clients without a trusted certificate are refused"
    )
    tls_insecure: bool = setting(
        "tlsAllowInsecureConnection", False, help="clients are not asked for certificates, so none needs to be trusted"
    )
    tls_protocols: tuple[str, ...] = setting("tlsProtocols", (), help=f"some of {', '.join(PROTOCOLS)}; empty: all")
    tls_ciphers: tuple[str, ...] = setting("tlsCiphers", (), help="suites of TLS 1.2; empty: the library's choice")
    web_tls_protocols: tuple[str, ...] = setting("webServiceTlsProtocols", (), help="at HTTPS; empty: tlsProtocols")
    web_tls_ciphers: tuple[str, ...] = setting("webServiceTlsCiphers", (), help="at HTTPS; empty: tlsCiphers")
    tls_refresh_s: int = setting(
        "tlsCertRefreshCheckDurationSec",
        REFRESH_S,
        help="seconds between two checks whether the files have changed; 0: no checks",
    )
    tls_enabled: bool = setting(
        "tlsEnabled", False, help="an older name for TLS at the ports; true needs one of the ports for TLS"
    )

    @property
    def tls_settings(self) -> TlsSettings:
        return TlsSettings.of(self, "tls_")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        tls = self.tls_settings
        yield from tls.store_type_problems()
        if self.tls_enabled and not self.has_tls:
            yield "tlsEnabled=true: no port speaks TLS; set brokerServicePortTls (6651) and webServicePortTls (8443)"
        if not self.has_tls:
            return
        if tls.with_key_store:
            yield from tls.missing("a port with TLS needs (tlsEnabledWithKeyStore)", "key_store")
        else:
            yield from tls.missing("a port with TLS needs", "certificate", "key")
            yield from tls.java_problems("certificate", "key")
        yield from tls.suite_problems()
        yield from TlsSettings.of(self, "web_tls_").suite_problems()
        trust, path = tls.trust
        if self.tls_client_required and not path:
            yield f"tlsRequireTrustedClientCertOnConnect=true needs {trust}: whom to trust"
        if self.tls_client_required and self.tls_insecure:
            yield "tlsRequireTrustedClientCertOnConnect and tlsAllowInsecureConnection exclude each other; choose one"

    @property
    def port_tls(self) -> TlsFiles | None:
        """The files for TLS at the broker's ports; None: none of them speaks it."""
        return self.tls_settings.files if self.has_tls else None

    @property
    def web_tls(self) -> TlsFiles | None:
        """The same for HTTPS, with protocols and suites of its own if there are any."""
        tls = self.tls_settings
        protocols, ciphers = self.web_tls_protocols or tls.protocols, self.web_tls_ciphers or tls.ciphers
        return replace(tls, protocols=protocols, ciphers=ciphers).files if self.has_tls else None


@dataclass(frozen=True, kw_only=True)
class BookieTls(Group):
    """TLS to the bookies. Off by default; bookkeeper_tls_directory alone switches it on."""

    bookkeeper_tls_directory: str = setting(
        "bookkeeperTLSDirectory",
        "",
        help="folder with tls.crt, tls.key and ca.crt (PEM): bookies are reached over TLS only, with this certificate; "
        "empty: off, or as the settings below say",
    )
    bookkeeper_tls: bool = setting(
        "bookkeeperTLSClientAuthentication", False, help="bookies are reached over TLS only, with the files below"
    )
    bookkeeper_tls_factory: str = setting(
        "bookkeeperTLSProviderFactoryClass",
        APACHE_FACTORY,
        help="the class that the settings below belong to; others are refused",
    )
    bookkeeper_tls_key_type: str = setting("bookkeeperTLSKeyFileType", "PEM", help="PEM; others are refused")
    bookkeeper_tls_key: str = setting("bookkeeperTLSKeyFilePath", "", help="the key of the broker's certificate, PEM")
    bookkeeper_tls_key_password_file: str = setting(
        "bookkeeperTLSKeyStorePasswordPath", "", help="file with the password of the key, if it has one"
    )
    bookkeeper_tls_certificate: str = setting(
        "bookkeeperTLSCertificateFilePath", "", help="the broker's certificate and its chain, PEM"
    )
    bookkeeper_tls_trust_type: str = setting("bookkeeperTLSTrustCertTypes", "PEM", help="PEM; others are refused")
    bookkeeper_tls_trusted: str = setting(
        "bookkeeperTLSTrustCertsFilePath",
        "",
        help="trusted certificates, PEM: a bookie needs one of them behind its own",
    )
    bookkeeper_tls_refresh_s: int = setting(
        "bookkeeperTlsCertFilesRefreshDurationSeconds",
        REFRESH_S,
        help="seconds between two checks whether the files have changed; 0: no checks",
    )
    bookkeeper_tls_verify_hostname: bool = setting(
        "bookkeeper_tlsHostnameVerificationEnabled",
        False,
        help="bookies' certificates must name the host that was connected to",
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.bookkeeper_tls_directory and self.bookkeeper_tls:
            yield (
                "bookkeeperTLSClientAuthentication and bookkeeperTLSDirectory exclude each other: the folder says "
                "everything; remove one of them"
            )
        if not self.bookkeeper_tls:
            return
        if self.bookkeeper_tls_factory != APACHE_FACTORY:
            yield f"bookkeeperTLSProviderFactoryClass={self.bookkeeper_tls_factory}: only {APACHE_FACTORY} is there"
        tls = TlsSettings.of(self, "bookkeeper_tls_")
        yield from tls.java_problems("key", "trusted")
        yield from tls.missing("bookkeeperTLSClientAuthentication=true needs", "key", "trusted", "certificate")

    @property
    def bookie_tls(self) -> TlsFiles | None:
        """The files for TLS to the bookies; None: connections to them are not encrypted."""
        is_on = self.bookkeeper_tls or self.bookkeeper_tls_directory
        return TlsSettings.of(self, "bookkeeper_tls_").files if is_on else None
