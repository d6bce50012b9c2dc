"""Tokens that one of the broker's own keys has signed. The keys are read again when a file of them has changed.

Rules:

1. `tokenSecretKey`, or else `tokenPublicKey`, is one key, as with Apache's brokers; the files in `tokenSecretKeys` and
   `tokenPublicKeys` are keys beside it. A file of these lists that is not there is no key: that is how a key comes and
   goes while the broker runs.
2. Files that cannot be used are logged, and the former keys stay, all of them. So it is if no key would be left.
3. Keys that were read while their files changed are not taken; the next look reads them again. So a new key that is
   moved over the old one is never away for a moment.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.settings.config import BrokerConfig
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.identity import DEFAULT_CLAIM, Identity
from magnetar_core.security.sources import path_in, read_source
from magnetar_core.security.tokens import TokenKey, TokenRules, public_key, secret_key

log = logging.getLogger(__name__)

# A look is one call of the system for each file, some microseconds.
LOOK_S: Final = 1.0

Stamp = tuple[int, int, int] | None
"""Time, size and number of a file; None: it is not there."""


class TokenKeys:
    """Checks tokens by the keys of the present time."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Reads the keys. Raises ConfigurationError."""
        self._config = config
        self._clock = clock
        key = config.token_secret_key or config.token_public_key
        self._one = _as_file(key) if path_in(key) is not None else key
        self._secrets = [_as_file(text) for text in config.token_secret_keys]
        self._public_keys = [_as_file(text) for text in config.token_public_keys]
        self._next_look_s = clock.monotonic() + LOOK_S
        self._stamps = self._look()
        self._rules = self._read()

    def identity(self, token: bytes, now_s: float) -> Identity:
        """As `TokenRules.identity`. Raises NotValid."""
        if self._clock.monotonic() >= self._next_look_s:
            self._next_look_s = self._clock.monotonic() + LOOK_S
            self._read_again()
        return self._rules.identity(token, now_s)

    # ----------------------------------------------------------------------------------- files

    def _read_again(self) -> None:
        """Read the keys if their files have changed. If they change while they are read, the next look reads them once
        more."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            rules = self._read()
        except ConfigurationError as error:
            if stamps == self._look():
                self._stamps = stamps
                log.error("the keys of tokens have changed and cannot be used; the former ones stay: %s", error)
            return
        if stamps == self._look():  # rule 3
            self._stamps, self._rules = stamps, rules
            log.warning("the keys of tokens were read anew; a token may be signed with one of %d", rules.key_count)

    def _look(self) -> dict[str, Stamp]:
        sources = (self._one, *self._secrets, *self._public_keys)
        return {path: _stamp(path) for source in sources if (path := path_in(source)) is not None}

    def _read(self) -> TokenRules:
        """The rules for tokens, with the keys that the files hold now. Raises ConfigurationError."""
        config = self._config
        keys = tuple(self._keys())
        if not keys:
            raise ConfigurationError(
                "tokenSecretKeys and tokenPublicKeys: none of these files is there, and there is no other key"
            )
        return TokenRules(
            *keys,
            claim=config.token_claim or DEFAULT_CLAIM,
            audience_claim=config.token_audience_claim,
            audiences=(config.token_audience,),
            leeway_s=config.token_leeway_s,
        )

    def _keys(self) -> Iterator[TokenKey]:
        config = self._config
        if config.token_secret_key:  # it comes first with Apache, too
            yield secret_key(read_source(self._one, "tokenSecretKey"), "tokenSecretKey")
        elif config.token_public_key:
            data = read_source(self._one, "tokenPublicKey")
            yield public_key(data, config.token_public_algorithm, "tokenPublicKey")
        for source in filter(_is_there, self._secrets):
            yield secret_key(read_source(source, "tokenSecretKeys"), f"tokenSecretKeys: {path_in(source)}")
        for source in filter(_is_there, self._public_keys):
            yield public_key(read_source(source, "tokenPublicKeys"), None, f"tokenPublicKeys: {path_in(source)}")


def _as_file(text: str) -> str:
    """The source of a path, which stays one when the file has gone: `read_source` takes other texts for keys then."""
    return text if text.startswith("file:") else Path(text).absolute().as_uri()


def _is_there(source: str) -> bool:
    path = path_in(source)
    return path is not None and os.path.exists(path)


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
