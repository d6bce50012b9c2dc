"""The files for TLS, and the checks of their settings. No IO.

    TlsFiles                certificate, key, trusted certificates: PEM, or Java's key stores (`security.key_stores`)
    directory_files(path)   the same from one folder: tls.crt, tls.key, ca.crt (the names that cert-manager and
                            Kubernetes' TLS secrets use, so that a mounted secret is such a folder)

Where only PEM is read, Java's key stores are refused by their names; the error says how to convert them.
"""

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

CERTIFICATE_NAME: Final = "tls.crt"
KEY_NAME: Final = "tls.key"
TRUSTED_NAME: Final = "ca.crt"

APACHE_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
"""The only provider that Apache ships; its settings are the ones understood here."""

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")

# Time between two checks whether the files have changed: certificates are valid for days at least, and a check is a few
# calls of `stat`. (Apache: 300 s in the broker, never in a bookie.)
REFRESH_S: Final = 300

_JAVA_ENDINGS: Final = (".jks", ".p12", ".pfx", ".keystore", ".truststore")
_CHACHA: Final = "CHACHA20_POLY1305_SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files, or of key stores instead of them; empty where there is none.

    *origin* names the settings in error messages. A key store stands for certificate and key, a trust store for the
    trusted certificates; passwords are not part of the text of this object.
    """

    origin: str
    certificate: str = ""
    key: str = ""
    key_password_file: str = ""
    trusted: str = ""
    """Certificates of authorities or of peers; the peer's certificate must be one of them, or be signed by one."""
    key_store: str = ""
    key_store_password: str = field(default="", repr=False)
    trust_store: str = ""
    trust_store_password: str = field(default="", repr=False)
    protocols: tuple[str, ...] = ()
    """Some of PROTOCOLS; empty: both."""
    ciphers: str = ""
    """Suites in OpenSSL's form, for TLS 1.2; empty: the library's choice."""
    verify_hostname: bool = False
    """Whether a client compares the name it connects to with the bookie's certificate."""
    refresh_s: int = REFRESH_S
    """Seconds between two checks whether the files have changed; 0: never."""

    @property
    def own(self) -> str:
        """Where the certificate is that is shown; empty: none is."""
        return self.key_store or self.certificate

    @property
    def authorities(self) -> str:
        """Where the trusted certificates are; empty: there are none."""
        return self.trust_store or self.trusted

    @property
    def paths(self) -> tuple[str, ...]:
        every = (self.key_store, self.trust_store, self.certificate, self.key, self.key_password_file, self.trusted)
        return tuple(path for path in every if path)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those of *paths* that nobody else should be able to read."""
        return tuple(path for path in (self.key_store, self.key, self.key_password_file) if path)


def directory_files(directory: str, setting: str) -> TlsFiles:
    """The files of the folder that *setting* names."""
    return TlsFiles(
        origin=f"{setting}={directory}",
        certificate=posixpath.join(directory, CERTIFICATE_NAME),
        key=posixpath.join(directory, KEY_NAME),
        trusted=posixpath.join(directory, TRUSTED_NAME),
    )


def store_problem(type_setting: str, store_type: str, path_setting: str, path: str) -> str | None:
    """Why a key or trust store cannot be used, judging by its name; None if it can."""
    kind = store_type.upper()
    if kind == "PEM" and not path.lower().endswith(_JAVA_ENDINGS):
        return None
    if kind == "PEM":
        what = f"{path_setting}={path} looks like a Java key store"
    elif kind in ("JKS", "PKCS12"):
        what = f"{type_setting}={store_type} is not supported"
    else:
        return f"{type_setting}={store_type}: expected PEM"
    return (
        f"{what}: TLS files are PEM here. Make PEM of it with "
        f"`keytool -importkeystore -srckeystore {path or 'STORE'} -destkeystore store.p12 -deststoretype PKCS12`, then "
        "`openssl pkcs12 -in store.p12 -nokeys -out tls.crt` and `openssl pkcs12 -in store.p12 -nocerts -noenc "
        f"-out tls.key` (for a trust store only the first), and set {type_setting}=PEM"
    )


STORE_TYPES: Final = ("JKS", "PKCS12")
"""Both mean what `keytool` makes: Java itself looks into the file to see which it is, and so do we."""


def store_type_problem(type_setting: str, store_type: str) -> str | None:
    """Why a store of this type cannot be read; None if it can."""
    if store_type.upper() in STORE_TYPES:
        return None
    return f"{type_setting}={store_type}: expected one of {', '.join(STORE_TYPES)}"


def protocol_problems(setting: str, protocols: tuple[str, ...]) -> Iterator[str]:
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            yield f"{setting}: {protocol} is not offered; expected some of {', '.join(PROTOCOLS)}"


def openssl_ciphers(setting: str, suites: tuple[str, ...]) -> str:
    """OpenSSL's list of *suites*, which may have Java's names. Raises ValueError for those of TLS 1.3.

    The suites of TLS 1.3 cannot be chosen, so a list of others means TLS 1.2 (as it does in Java).
    """
    names = []
    for suite in suites:
        if not suite.startswith("TLS_"):
            names.append(suite)
            continue
        exchange, separator, cipher = suite.removeprefix("TLS_").partition("_WITH_")
        if not separator:
            raise ValueError(f"{setting}: {suite} is of TLS 1.3, whose suites cannot be chosen; leave it out")
        cipher = cipher.replace(_CHACHA, "CHACHA20_POLY1305").replace("AES_", "AES").replace("_CBC_", "_")
        plain = "" if exchange == "RSA" else exchange.replace("_", "-") + "-"
        names.append(plain + cipher.replace("_", "-"))
    return ":".join(names)


class Validity(NamedTuple):
    """The time for which a certificate is valid."""

    begin: datetime
    end: datetime


_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
# Tags of DER. Before a certificate's validity come: [0] version, serial number, algorithm, issuer.
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0


def validities(pem: str) -> list[Validity]:
    """The validity of each certificate in a PEM file, in order. Those that cannot be read are left out; the ssl library
    reports them.

    Parsed here because Python's ssl gives the dates of peers' certificates only.
    """
    periods = []
    for match in _CERTIFICATE.finditer(pem):
        try:
            periods.append(_validity(base64.b64decode(match[1])))
        except (ValueError, IndexError, binascii.Error):
            continue
    return periods


def _validity(der: bytes) -> Validity:
    """RFC 5280, 4.1. Raises ValueError, IndexError."""
    _, certificate, _ = _element(der, 0)
    _, at, _ = _element(der, certificate)
    tag, _, behind = _element(der, at)
    if tag == _VERSION:
        at = behind
    for _ in range(3):
        _, _, at = _element(der, at)
    tag, at, _ = _element(der, at)
    if tag != _SEQUENCE:
        raise ValueError("no validity where it should be")
    times = []
    for _ in range(2):
        tag, begin, at = _element(der, at)
        text = der[begin:at].decode("ascii")
        if tag == _UTC_TIME:
            text = ("19" if text[:2] >= "50" else "20") + text
        times.append(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC))
    return Validity(*times)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """(tag, where its content begins, where it ends)."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length >= 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    if begin + length > len(der):
        raise ValueError("cut off")
    return tag, begin, begin + length
