"""`magnetar tokens`: tokens for clients, and the keys that they are signed with."""

import os
import secrets
from pathlib import Path
from typing import Final

import click

from magnetar.cli.common.options import done, json_option, now_ms
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.sources import read_source
from magnetar_core.security.tokens import sign

# What `openssl rand 32` makes, and HS256 asks for.
_SECRET_BYTES: Final = 32

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "y": 365 * 86_400}


class _Duration(click.ParamType[int]):
    """`90s`, `30m`, `12h`, `7d`, `1y`: seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if not text[:-1].isdecimal() or text[-1:] not in _UNITS or not 0 < int(text[:-1]) < 10_000:
            self.fail(f"{value!r}: write a number and a unit, as in 30m, 12h, 7d or 1y", param, ctx)
        return int(text[:-1]) * _UNITS[text[-1]]


@click.group()
def tokens() -> None:
    """Tokens for clients of a broker that authenticates them, and the secret they are signed with."""


@tokens.command("create-secret-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def create_secret_key(file: Path, as_json: bool) -> None:
    """Make a secret for tokens in FILE (`tokenSecretKey` of the brokers). A file that is there stays.

    Example:  magnetar tokens create-secret-key token.key
    """
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            target.write(secrets.token_bytes(_SECRET_BYTES))
    except FileExistsError:
        raise ConfigurationError(f"{file} is there already; tokens that it has signed are valid only with it") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be made: {error.strerror}") from None
    done(f"{file}: a secret of {_SECRET_BYTES} bytes; brokers get it as tokenSecretKey", as_json, file=str(file))


@tokens.command("create")
@click.argument("role")
@click.option("--secret-key", metavar="FILE", help="The secret: a path, file:///PATH or data:;base64,….")
@click.option("--private-key", metavar="FILE", help="Or a private key, PEM or DER.")
@click.option("--algorithm", help="HS256 with a secret; RS256 with a private key. Others: HS512, ES256, …")
@click.option("--expires", type=_Duration(), help="The token is valid for this long: 30m, 12h, 7d. Without: for ever.")
@click.option("--audience", help="Claim `aud`, where the brokers ask for one (tokenAudience).")
@json_option
def create(
    role: str,
    secret_key: str | None,
    private_key: str | None,
    algorithm: str | None,
    expires: int | None,
    audience: str | None,
    as_json: bool,
) -> None:
    """Print a token for ROLE.

    Example:  magnetar tokens create shop --secret-key keys/token.key --expires 7d
    """
    if (secret_key is None) == (private_key is None):
        raise click.UsageError("give one of --secret-key and --private-key")
    if not role.strip():
        raise ConfigurationError("a role has a name")
    claims: dict[str, object] = {"sub": role}
    if expires is not None:
        claims["exp"] = now_ms() // 1000 + expires
    if audience is not None:
        claims["aud"] = audience
    option, source = ("--secret-key", secret_key) if secret_key is not None else ("--private-key", private_key)
    assert source is not None
    kind = algorithm or ("HS256" if secret_key is not None else "RS256")
    if kind.startswith("HS") != (secret_key is not None):
        raise ConfigurationError(f"{kind} is signed with a {'secret' if kind.startswith('HS') else 'private key'}")
    token = sign(claims, read_source(source, option), kind)
    done(token, as_json, token=token, **claims)
