"""Tokens of OpenID issuers: who signed one, with which of its keys, and whose it is. No IO and no clock.

    token ── claim iss ──▶ an issuer that is allowed ── header kid ──▶ one of its keys ──▶ signature, times, audience

Rules:

1. Only issuers in the list are asked for keys: nobody can make a server ask an address of its own.
2. Only public keys verify (RS…, PS… and ES…), each with the algorithms of its kind: a key of a list is never a secret.
3. The audience of a token must be one that is allowed.

A key list is that of RFC 7517. (As Apache's AuthenticationProviderOpenID.)
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import jwt

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import ConfigurationError, Corruption
from magnetar_core.security.identity import Identity, NotValid
from magnetar_core.security.tokens import TOKEN_BYTES_MAX, TokenKey, TokenRules, token_key_of

# An issuer has a few keys: the present one, the former, the next.
KEYS_MAX: Final = 100

AUDIENCE: Final = "aud"

# Without them Apache's provider takes no token.
_REQUIRED: Final = ("iat", "exp", "nbf", "sub")

Keys = Mapping[str, TokenKey]
"""Key id → key; the empty id is that of a key without one."""


class Claimed(NamedTuple):
    """What a token says of its signature, which nobody has verified yet."""

    issuer: str
    key_id: str


def claimed(token: bytes) -> Claimed:
    """Raises NotValid."""
    if len(token) > TOKEN_BYTES_MAX:
        raise NotValid(f"the token has {len(token)} bytes; at most {TOKEN_BYTES_MAX} are read")
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False, "verify_exp": False, "verify_aud": False})
        issuer, key_id = claims.get("iss"), header.get("kid", "")
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NotValid(f"the token cannot be read ({type(error).__name__})") from None
    if not isinstance(issuer, str) or not isinstance(key_id, str):
        raise NotValid("the token does not say who issued it (iss), or names its key (kid) by no text")
    return Claimed(issuer, key_id)


def parse_keys(data: bytes, where: str) -> Keys:
    """The keys of a list that can verify tokens; others are left out. Raises Corruption if it is not a list of keys."""
    try:
        listed = parse_json(data)["keys"]
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise ValueError(f"expected a list of at most {KEYS_MAX} keys")
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{where}: expected a list of keys (JWKS), found {data[:80]!r} ({error})") from None
    keys: dict[str, TokenKey] = {}
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        try:
            key = token_key_of(jwt.PyJWK.from_json(json.dumps(entry)).key, where)
        except (jwt.PyJWTError, ConfigurationError, ValueError, TypeError, KeyError):
            continue  # of a kind that is not known here, weak, or a secret (rule 2)
        if key is not None:
            keys[str(entry.get("kid", ""))] = key
    return keys


class OpenIdRules:
    """Which tokens are valid, and whose they are."""

    def __init__(self, issuers: Collection[str], audiences: Collection[str], *, claim: str, leeway_s: int) -> None:
        self._issuers = frozenset(issuers)
        self._audiences = tuple(audiences)
        self._claim = claim
        self._leeway_s = leeway_s

    def claimed(self, token: bytes) -> Claimed:
        """Raises NotValid, also for an issuer that is not allowed (rule 1)."""
        claims = claimed(token)
        if claims.issuer not in self._issuers:
            raise NotValid("the issuer of the token is not among openIDAllowedTokenIssuers")
        return claims

    def identity(self, token: bytes, key: TokenKey, now_s: float) -> Identity:
        """The identity that the token proves at *now_s* (seconds since 1970). Raises NotValid."""
        rules = TokenRules(
            key,
            claim=self._claim,
            audience_claim=AUDIENCE,
            audiences=self._audiences,
            leeway_s=self._leeway_s,
            required=_REQUIRED,
        )
        return rules.identity(token, now_s)


def key_address(document: bytes, issuer: str, where: str) -> str:
    """Where the keys are, as an issuer's discovery document says. Raises Corruption."""
    try:
        parsed: Any = parse_json(document)
        address, named_issuer = parsed["jwks_uri"], parsed["issuer"]
        if not isinstance(address, str):
            raise TypeError("jwks_uri is not a text")
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{where}: expected a discovery document, found {document[:80]!r} ({error})") from None
    if named_issuer != issuer:
        raise Corruption(f"{where}: it is of another issuer, {named_issuer!r:.200}")
    return address
