"""Data keys that Java's client encrypted for an elliptic curve (`MessageCryptoBc`, 4.0.8). No IO.

    ephemeral public point, uncompressed ‖ data key XOR K1 ‖ HMAC-SHA1 of the middle part and 8 zero bytes, with K2
    K2 (16 bytes) ‖ K1: KDF2 of IEEE 1363 with SHA-1, from the ephemeral point ‖ the secret of ECDH

It is the cipher "ECIES" of Bouncy Castle with a MAC key of 128 bits. The other clients have RSA alone.
"""

import hashlib
import hmac
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import ECDH, EllipticCurvePrivateKey, EllipticCurvePublicKey

_MAC_KEY_BYTES: Final = 16
_TAG_BYTES: Final = 20
_NO_ENCODING: Final = bytes(8)


def opened(private: EllipticCurvePrivateKey, encrypted: bytes) -> bytes:
    """The data key. Raises ValueError."""
    point_bytes = 1 + 2 * ((private.curve.key_size + 7) // 8)
    if len(encrypted) <= point_bytes + _TAG_BYTES:
        raise ValueError(f"{len(encrypted)} bytes are too few")
    point, masked, tag = encrypted[:point_bytes], encrypted[point_bytes:-_TAG_BYTES], encrypted[-_TAG_BYTES:]
    secret = private.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(private.curve, point))
    blocks = -(-(_MAC_KEY_BYTES + len(masked)) // hashlib.sha1().digest_size)
    stream = b"".join(hashlib.sha1(point + secret + at.to_bytes(4, "big")).digest() for at in range(1, blocks + 1))
    if not hmac.compare_digest(hmac.digest(stream[:_MAC_KEY_BYTES], masked + _NO_ENCODING, "sha1"), tag):
        raise ValueError("its tag is another one")
    return bytes(own ^ mask for own, mask in zip(masked, stream[_MAC_KEY_BYTES:], strict=False))
