"""Java's key stores as the certificates and keys that are in them. No IO: bytes go in.

    key store     one private key with its certificate and the chain behind it
    trust store   certificates only: whoever has one of them behind its own is trusted

Rules:

1. The bytes say what a store is, not its name: `keytool` has written PKCS#12 since Java 9, also into files that are
   called `.jks`. The older formats JKS and JCEKS are refused with the command that converts them.
2. Of several keys in a store the first is taken. (Java chooses among them by the kind of the peer's cipher.)
3. A trust store has no private key. Java would trust the key's own certificate and not those behind it; which of the
   certificates those are is not known here, so nobody is trusted by mistake.
4. No password is in any text.
"""

from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12KeyAndCertificates,
    load_pkcs12,
)

from magnetar_core.runtime.types import ConfigurationError

# The first four bytes of Java's own formats.
_JAVAS: Final = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}

# A store of a broker has some KB, one with all authorities of the world 200 KB.
STORE_BYTES_MAX: Final = 10 * 1024 * 1024


class Own(NamedTuple):
    """What a server or client shows, and what it signs with."""

    chain: bytes
    """PEM: its certificate and the ones behind it, in order."""
    key: PrivateKeyTypes

    def key_pem(self, password: bytes = b"") -> bytes:
        """The key, encrypted if there is a *password*."""
        locked: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)


def own_certificate(data: bytes, password: str, path: str) -> Own:
    """The key of a key store, and its certificate with the chain. Raises ConfigurationError, which names *path*."""
    store = _decrypted_store(data, password, path)
    if store.key is None or store.cert is None:
        raise ConfigurationError(
            f"{path} has no private key with a certificate; make one with `keytool -genkeypair -keystore {path}`"
        )
    chain = _chain(store.cert.certificate, [certificate.certificate for certificate in store.additional_certs])
    return Own(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain), store.key)


def trusted_certificates(data: bytes, password: str, path: str) -> bytes:
    """The certificates of a trust store, PEM. Raises ConfigurationError, which names *path*."""
    store = _decrypted_store(data, password, path)
    if store.key is not None:  # rule 3
        raise ConfigurationError(
            f"{path} has a private key, and a trust store has certificates only; make one with "
            f"`keytool -exportcert -rfc -alias ALIAS -keystore {path} -file ca.crt` and "
            "`keytool -importcert -alias ca -file ca.crt -keystore trust.p12`"
        )
    if not store.additional_certs:
        raise ConfigurationError(f"{path} has no certificates, so nobody could be trusted")
    return b"".join(certificate.certificate.public_bytes(Encoding.PEM) for certificate in store.additional_certs)


def _decrypted_store(data: bytes, password: str, path: str) -> PKCS12KeyAndCertificates:
    kind = _JAVAS.get(data[:4])
    if kind is not None:  # rule 1
        raise ConfigurationError(
            f"{path} has Java's old format {kind}, which is not read; convert it to PKCS#12 with `keytool "
            f"-importkeystore -srckeystore {path} -srcstoretype {kind} -destkeystore {path}.p12 -deststoretype pkcs12` "
            f"and name {path}.p12"
        )
    if len(data) > STORE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {STORE_BYTES_MAX} bytes; is it a key store?")
    try:
        return load_pkcs12(data, password.encode() or None)
    except ValueError:
        # Its text is left out: the library's words say no more than this.
        raise ConfigurationError(f"{path} cannot be read: it is no PKCS#12 store, or the password is wrong") from None


def _chain(leaf: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """*leaf* and the certificates behind it; a store may have others as well."""
    chain, left = [leaf], [certificate for certificate in others if certificate != leaf]
    while chain[-1].issuer != chain[-1].subject:
        behind = next((certificate for certificate in left if _is_issued_by(chain[-1], certificate)), None)
        if behind is None:
            break
        chain.append(behind)
        left = [certificate for certificate in left if certificate != behind]
    return chain


def _is_issued_by(certificate: x509.Certificate, other: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(other)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
