"""JSON Web Tokens: whose they are, and whether they are valid at a given time. No IO and no clock.

Rules:

1. The key decides which algorithms are accepted, never the token: `none` and the algorithms of another kind of key are
   refused, so nobody can take a public key for a secret.
2. A secret is as long as its hash at least (RFC 7518, 3.2); so is it with Apache.
3. A token without the claim that names the role is refused; so is one that expires or begins at something that is not
   a number.
4. No text of an error holds a part of a token.
5. A token is three parts of base64url without padding (RFC 7515, 2), and nothing else: the library ignores
   other characters, so one token would have many forms.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.identity import DEFAULT_CLAIM, Identity, NotValid

# A token is a few hundred bytes, or a few KiB with an RSA key of 8192 bits and many claims. Everything longer costs
# work before its signature is known to be valid. (aiohttp takes headers of 8 KiB.)
TOKEN_BYTES_MAX: Final = 16 * 1024

# Seconds since 1970, beyond all years: a number of 400 digits does not fit into a float.
_TIME_MAX: Final = 1e15

_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS_MIN: Final = 2048
_CURVES: Final = {SECP256R1: "ES256", SECP384R1: "ES384", SECP521R1: "ES512"}

ALGORITHMS: Final = (*_SECRET_BYTES, *_RSA, *_CURVES.values())
"""All algorithms that can be configured."""

_FORM: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

# Checked below, against the time that the caller gives.
_OPTIONS: Final = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class TokenKey:
    """A key that verifies tokens, and the algorithms it stands for (rule 1)."""

    def __init__(self, key: Any, algorithms: tuple[str, ...]) -> None:
        assert algorithms, "a key stands for at least one algorithm"
        assert "none" not in algorithms, "no key stands for no signature"
        self.key = key
        self.algorithms = algorithms


def secret_key(secret: bytes, setting: str) -> TokenKey:
    """The key of HS tokens (rule 2). Raises ConfigurationError."""
    algorithms = tuple(name for name, size in _SECRET_BYTES.items() if len(secret) >= size)
    if not algorithms:
        raise ConfigurationError(
            f"{setting}: the secret has {len(secret)} bytes, and at least 32 are needed; make one with "
            "`openssl rand -out secret.key 32`"
        )
    return TokenKey(secret, algorithms)


def public_key(data: bytes, algorithm: str | None, setting: str) -> TokenKey:
    """The key of RS, PS and ES tokens, as DER or PEM; *algorithm* says which kind it must be, None: either.

    Raises ConfigurationError.
    """
    if algorithm not in (None, *_RSA, *_CURVES.values()):
        raise ConfigurationError(f"tokenPublicAlg={algorithm}: expected one of {', '.join((*_RSA, *_CURVES.values()))}")
    try:
        key = load_pem_public_key(data) if data.lstrip().startswith(b"-----") else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{setting}: it is no public key, neither DER nor PEM") from None
    fits = algorithm in (None, *(_RSA if isinstance(key, RSAPublicKey) else _CURVES.values()))
    signing_key = token_key_of(key, setting) if fits else None
    if signing_key is None:
        kind = f"tokenPublicAlg={algorithm} needs" if algorithm else "signs tokens"
        raise ConfigurationError(f"{setting}: the key is not of the kind that {kind}")
    return signing_key


def token_key_of(public_key: Any, where: str) -> TokenKey | None:
    """*public_key* with the algorithms that it may verify; None if it is neither RSA nor EC.

    Raises ConfigurationError for an RSA key that is too short, and for a curve without an algorithm.
    """
    if isinstance(public_key, RSAPublicKey):
        if public_key.key_size < _RSA_BITS_MIN:
            raise ConfigurationError(f"{where}: the RSA key has {public_key.key_size} bits; at least 2048 are needed")
        return TokenKey(public_key, _RSA)
    if isinstance(public_key, EllipticCurvePublicKey):
        algorithm = _CURVES.get(type(public_key.curve))
        if algorithm is None:
            raise ConfigurationError(f"{where}: the curve {public_key.curve.name} belongs to no algorithm of tokens")
        return TokenKey(public_key, (algorithm,))
    return None


class TokenRules:
    """Which tokens are valid, and whose they are."""

    def __init__(
        self,
        *keys: TokenKey,
        claim: str = DEFAULT_CLAIM,
        audience_claim: str = "",
        audiences: tuple[str, ...] = (),
        leeway_s: int = 0,
        required: tuple[str, ...] = (),
    ) -> None:
        """A token is signed with one of *keys*. With *audience_claim*, that claim must be one of *audiences*, or a list
        with one of them. *required*: claims without which a token is not valid."""
        assert keys, "without a key no token is valid"
        self._keys = keys
        self.key_count = len(keys)
        self._claim = claim
        self._audience_claim = audience_claim
        self._audiences = audiences
        self._leeway_s = leeway_s
        self._required = required

    def identity(self, token: bytes, now_s: float) -> Identity:
        """The identity that the token proves at *now_s* (seconds since 1970). Raises NotValid."""
        if len(token) > TOKEN_BYTES_MAX:
            raise NotValid(f"the token has {len(token)} bytes; at most {TOKEN_BYTES_MAX} are read")
        if _FORM.fullmatch(token) is None:  # rule 5
            raise NotValid("the token is not three parts of base64url")
        return self._identity_of(self._claims(token), now_s)

    def _claims(self, token: bytes) -> Mapping[str, Any]:
        """What the token says, if one of the keys has signed it. Raises NotValid."""
        signatures, reason = False, ""
        for key in self._keys:
            try:
                return jwt.decode(token, key.key, algorithms=list(key.algorithms), options=_OPTIONS)  # type: ignore[arg-type]
            except jwt.InvalidAlgorithmError:
                pass
            except jwt.InvalidSignatureError:
                signatures = True
            except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError) as error:
                # The library's own texts may quote what they read (rule 4).
                reason = f"the token cannot be read ({type(error).__name__})"
        if signatures:
            raise NotValid(f"the signature of the token does not belong to {_configured(len(self._keys))}")
        algorithms = dict.fromkeys(name for key in self._keys for name in key.algorithms)
        raise NotValid(reason or f"the token is not signed with {' or '.join(algorithms)}")

    def _identity_of(self, claims: Mapping[str, Any], now_s: float) -> Identity:
        missing = [name for name in self._required if claims.get(name) is None]
        if missing:
            raise NotValid(f"the token has no claim {' and no claim '.join(missing)}")
        expires_s, begins_s = _time(claims, "exp"), _time(claims, "nbf")
        if expires_s is not None and now_s >= expires_s + self._leeway_s:
            raise NotValid("the token has expired")
        if begins_s is not None and now_s < begins_s - self._leeway_s:
            raise NotValid("the token is not valid yet (nbf)")
        if self._audience_claim:
            self._check_audience(claims.get(self._audience_claim))
        role = claims.get(self._claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role.strip():
            raise NotValid(f"the token has no claim {self._claim} that names a role")
        return Identity(role, expires_s)

    def _check_audience(self, audience: Any) -> None:
        named = audience if isinstance(audience, list) else [audience]
        if not any(name in self._audiences for name in named if isinstance(name, str)):
            raise NotValid(f"the token is for another audience (claim {self._audience_claim})")


def _configured(keys: int) -> str:
    return "the configured key" if keys == 1 else f"one of the {keys} configured keys"


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """A claim in seconds since 1970 (rule 3)."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_TIME_MAX < value < _TIME_MAX:
        raise NotValid(f"the token's claim {name} is no time")
    return float(value)


# ---------------------------------------------------------------------------------- making tokens


def sign(claims: Mapping[str, Any], key: bytes, algorithm: str) -> str:
    """A token with *claims*; *key* is a secret, or a private key as DER or PEM. Raises ConfigurationError."""
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"the algorithm {algorithm} is not known; expected one of {', '.join(ALGORITHMS)}")
    if algorithm in _SECRET_BYTES:
        if algorithm not in secret_key(key, "the secret").algorithms:
            raise ConfigurationError(f"{algorithm} needs a secret of {_SECRET_BYTES[algorithm]} bytes at least")
        return jwt.encode(dict(claims), key, algorithm)
    try:
        pem = key.lstrip().startswith(b"-----")
        private = load_pem_private_key(key, None) if pem else load_der_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError("it is no private key without a password, neither DER nor PEM") from None
    fits = (
        algorithm in _RSA
        if isinstance(private, RSAPrivateKey)
        else isinstance(private, EllipticCurvePrivateKey) and _CURVES.get(type(private.curve)) == algorithm
    )
    if not fits:
        raise ConfigurationError(f"the key is not of the kind that {algorithm} needs")
    return jwt.encode(dict(claims), private, algorithm)  # type: ignore[arg-type]
