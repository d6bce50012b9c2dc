"""A data key as Java's client encrypts it for an elliptic curve."""

from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from connectors.spark.task.ecies import opened

# Written by `openssl ecparam -name prime256v1 -genkey`.
KEY = b"""-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIDXzNtX4TfeK2UrQ9fset/dT9QwGssaUEZQCDpg+tBPQoAoGCCqGSM49
AwEHoUQDQgAELg6LXML1CGRHB0TRcuAPBNqna0Sc/KALC6k8xNMQ8rnJqeIjZp/O
RJvTXkCtLjEQAHKwAGzkXrrmTuf+u3PG1g==
-----END EC PRIVATE KEY-----
"""

# The bytes 0 to 31, encrypted by the cipher "ECIES" of Bouncy Castle with `MessageCryptoBc.createIESParameterSpec()`,
# both as Pulsar 4.0.8 has them.
ENCRYPTED = bytes.fromhex(
    "04dcee225dbdd24b7b5d80722bcd935962d238d68259672b2a25dbf465de6e0ece3f7eb31fc80469381facef4a17c2a7ec653f09b3576f5f4b"
    "50b05f0ce714bbc43067b2877227fb6ec8cfc237df7d36dfdacc9b91a665484c7ef61718e5824f4561fd654621918c0c53e800c5776c356c37"
    "5e4387"
)


def private() -> ec.EllipticCurvePrivateKey:
    return cast(ec.EllipticCurvePrivateKey, load_pem_private_key(KEY, None))


def test_a_data_key_of_javas_client_is_opened() -> None:
    assert opened(private(), ENCRYPTED) == bytes(range(32))


@pytest.mark.parametrize("at", [0, 1, 40, 64, 65, 96, 97, 116])
def test_a_changed_byte_is_an_error(at: int) -> None:
    changed = bytearray(ENCRYPTED)
    changed[at] ^= 1
    with pytest.raises(ValueError, match=r".*"):
        opened(private(), bytes(changed))


@pytest.mark.parametrize("size", [0, 1, 65, 85])
def test_what_is_too_short_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes are too few"):
        opened(private(), ENCRYPTED[:size])
