"""Makes an authority and a server's certificate, for those who have none yet. No IO and no clock.

The keys are on the curve P-256, which every client understands. They come as PEM, without a password.
"""

import ipaddress
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# An authority that nobody renews by itself has to last; its clients keep its certificate.
AUTHORITY_DAYS: Final = 3650
# A server's certificate is made anew at a start. (Browsers take none that is valid for longer than 398 days.)
SERVER_DAYS: Final = 397

# Clocks of other machines may be late.
_EARLIER: Final = timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate with its key, both PEM."""

    certificate: bytes
    key: bytes


def new_authority(name: str, now: datetime) -> Issued:
    """An authority that signs its own certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    authority = (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Issued(authority.public_bytes(Encoding.PEM), _pem(key))


def new_server(
    authority: Issued, hosts: Iterable[str], now: datetime, *, days: int = SERVER_DAYS, is_client: bool = False
) -> Issued:
    """A server's certificate for *hosts*, which are names and addresses; the first is its CN.

    *is_client*: it shows the certificate to other servers, too.
    """
    names = list(hosts)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "an authority of `new_authority`"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else [])]
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Issued(certificate.public_bytes(Encoding.PEM), _pem(key))


def is_good_for(certificate: bytes, hosts: Iterable[str], until: datetime) -> bool:
    """Whether a server's certificate names all *hosts* and is still valid at *until*. Raises ValueError."""
    parsed = x509.load_pem_x509_certificate(certificate)
    named = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return parsed.not_valid_after_utc > until and all(_host(name) in named for name in hosts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
