from dataclasses import dataclass

from magnetar_core.runtime.config import setting
from magnetar_core.security.tls.files import TlsFiles
from magnetar_core.security.tls.settings import TlsSettings


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two sides with a block each, and each has another part of it."""

    port_certificate: str = setting("portCertificate", "", help="shown to clients")
    port_key: str = setting("portKeyFile", "", help="its key")
    port_key_type: str = setting("portKeyType", "PEM", help="its type")
    port_trusted: str = setting("portTrusted", "", help="of clients")
    port_ciphers: tuple[str, ...] = setting("portSuites", (), help="suites")
    port_protocols: tuple[str, ...] = setting("portVersions", (), help="protocols")
    other_with_key_store: bool = setting("otherStores", True, help="key stores")
    other_key_store: str = setting("otherStore", "own.jks", help="own")
    other_key_store_type: str = setting("otherType", "JKS", help="its type")
    other_trust_store: str = setting("otherTrust", "trust.jks", help="trusted")
    other_trust_store_type: str = setting("otherTrustType", "BKS", help="its type")
    other_trust_store_password: str = setting("otherPassword", "secret", help="its password", secret=True)


def test_a_block_is_made_of_the_fields_with_a_prefix() -> None:
    sides = Sides(port_certificate="c", port_key="k", port_trusted="t", port_protocols=("TLSv1.3",))
    port, other = TlsSettings.of(sides, "port_"), TlsSettings.of(sides, "other_")
    assert port.files == TlsFiles(
        origin="portCertificate, portKeyFile, portTrusted",
        certificate="c",
        key="k",
        trusted="t",
        protocols=("TLSv1.3",),
    )
    assert other.files == TlsFiles(
        origin="otherStore, otherTrust", key_store="own.jks", trust_store="trust.jks", trust_store_password="secret"
    )
    assert (port.trust, other.trust) == (("portTrusted", "t"), ("otherTrust", "trust.jks"))
    assert "secret" not in repr(other)


def test_problems_name_the_settings_of_their_own_side() -> None:
    sides = Sides(port_key="own.jks", port_ciphers=("TLS_AES_128_GCM_SHA256",), port_protocols=("SSLv3",))
    port, other = TlsSettings.of(sides, "port_"), TlsSettings.of(sides, "other_")
    assert list(port.missing("it needs", "certificate", "key")) == ["portCertificate is not set, which it needs"]
    (java,) = port.java_problems("key")
    assert java.startswith("portKeyFile=own.jks looks like a Java key store")
    assert java.endswith("set portKeyType=PEM")
    assert [text.partition(":")[0] for text in port.suite_problems()] == ["portVersions", "portSuites"]
    assert list(port.store_type_problems()) == []
    assert list(other.store_type_problems()) == ["otherTrustType=BKS: expected one of JKS, PKCS12"]
