"""Users and their passwords, as Apache's `htpasswd` writes them: `user:hash`, one a line. No IO.

    $apr1$…            MD5, 1,000 times, as Apache's web server does it (`htpasswd -m`)
    $2a$ $2b$ $2y$…    bcrypt (`htpasswd -B`): ours, not Apache Pulsar's
    13 characters      the traditional crypt (`htpasswd -d`)

Everything else is refused when the file is read: a password in clear text, or a hash that is not understood, would only
show itself by users who cannot come in.

Rules:

1. Each refusal takes as long as any other, whichever user is named: one hash of each kind that is in the file is
   computed. So nobody finds out which users there are, or how a password is kept.
2. No text of an error holds a password or a hash.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

import bcrypt

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.des_crypt import des_crypt
from magnetar_core.security.identity import Identity, NotValid

# Longer ones are refused before anything is computed: apr1 goes over the password a thousand times.
CREDENTIALS_BYTES_MAX: Final = 1024

# bcrypt reads no more, and its library refuses what is longer.
_BCRYPT_BYTES: Final = 72

_APR1: Final = re.compile(r"\$apr1\$[./0-9A-Za-z]{0,8}\$[./0-9A-Za-z]{22}")
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./0-9A-Za-z]{53}")
_DES: Final = re.compile(r"[./0-9A-Za-z]{13}")
# Each step doubles the time: 15 takes some two seconds.
_BCRYPT_COST_MAX: Final = 15

_DIGITS: Final = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def parse_users(data: bytes, setting: str) -> dict[str, str]:
    """User → hash. Raises ConfigurationError with the number of the line."""
    users: dict[str, str] = {}
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{setting}: it is not a text in UTF-8; expected lines of user:hash") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, separator, hashed = line.strip().partition(":")
        if not separator or not user:
            raise ConfigurationError(f"{setting}, line {number}: it is not user:hash")
        if user in users:
            raise ConfigurationError(f"{setting}, line {number}: the user {user} is there twice")
        if (problem := _problem(hashed)) is not None:
            raise ConfigurationError(f"{setting}, line {number}, user {user}: {problem}")
        users[user] = hashed
    if not users:
        raise ConfigurationError(f"{setting}: there is no user in it; make one with `htpasswd -B -c FILE USER`")
    return users


def _problem(hashed: str) -> str | None:
    match = _BCRYPT.fullmatch(hashed)
    if match is not None:
        if 4 <= int(match[1]) <= _BCRYPT_COST_MAX:
            return None
        return f"the cost of bcrypt is {match[1]}; 4 to {_BCRYPT_COST_MAX} are taken"
    if _APR1.fullmatch(hashed) or _DES.fullmatch(hashed):
        return None
    return "the hash is neither apr1, bcrypt nor crypt; make one with `htpasswd -B`"


class PasswordRules:
    """Which passwords are right. A check takes from one to several hundred milliseconds."""

    def __init__(self, users: Mapping[str, str]) -> None:
        assert users, "there is at least one user"
        self._users = dict(users)
        self._of_kinds = {_kind(hashed): hashed for hashed in self._users.values()}

    def identity(self, credentials: bytes) -> Identity:
        """The user whose `user:password` was shown. Raises NotValid."""
        if len(credentials) > CREDENTIALS_BYTES_MAX:
            raise NotValid(f"user and password have {len(credentials)} bytes; at most {CREDENTIALS_BYTES_MAX} are read")
        user, separator, password = credentials.partition(b":")
        if not separator:
            raise NotValid("the credentials are not user:password")
        name = user.decode("utf-8", errors="replace")
        hashed = self._users.get(name)
        if hashed is not None and matches(password, hashed):
            return Identity(name)
        for kind, other in self._of_kinds.items():  # rule 1
            if hashed is None or kind != _kind(hashed):
                matches(password, other)
        raise NotValid("unknown user or wrong password")


def _kind(hashed: str) -> str:
    """Hashes of one kind take the same time: those of bcrypt by their cost."""
    match = _BCRYPT.fullmatch(hashed)
    return match[1] if match is not None else "apr1" if hashed.startswith("$apr1$") else "crypt"


def matches(password: bytes, hashed: str) -> bool:
    if hashed.startswith("$2"):
        if len(password) > _BCRYPT_BYTES or b"\0" in password:
            return False
        return bcrypt.checkpw(password, hashed.encode("ascii"))
    if hashed.startswith("$apr1$"):
        computed = apr1(password, hashed.split("$")[2].encode("ascii"))
    else:
        computed = des_crypt(password, hashed[:2].encode("ascii"))
    return hmac.compare_digest(computed, hashed)


def apr1(password: bytes, salt: bytes) -> str:
    """The apr1 hash of Apache's web server: the MD5 crypt of FreeBSD with another name."""
    salt = salt[:8]
    inner = hashlib.md5(password + salt + password, usedforsecurity=False).digest()
    outer = password + b"$apr1$" + salt
    outer += (inner * (len(password) // 16 + 1))[: len(password)]
    length = len(password)
    while length:
        outer += b"\0" if length & 1 else password[:1]
        length >>= 1
    digest = hashlib.md5(outer, usedforsecurity=False).digest()
    for turn in range(1000):
        text = password if turn & 1 else digest
        text += salt if turn % 3 else b""
        text += password if turn % 7 else b""
        text += digest if turn & 1 else password
        digest = hashlib.md5(text, usedforsecurity=False).digest()
    groups = [(digest[at] << 16 | digest[at + 6] << 8 | digest[(at + 12) if at < 4 else 5], 4) for at in range(5)]
    groups.append((digest[11], 2))
    encoded = bytes(_DIGITS[value >> 6 * at & 63] for value, count in groups for at in range(count))
    return f"$apr1${salt.decode('ascii')}${encoded.decode('ascii')}"
