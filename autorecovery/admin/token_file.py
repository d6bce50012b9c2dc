"""The file of tokens (`tokens`), read again whenever it has changed.

Rule: a changed file that cannot be used admits nobody. The former tokens do not stay in force, since the change may
have been made to take one of them away.
"""

import logging
import os
from pathlib import Path
from typing import Final

from autorecovery.admin.calls import Refused
from autorecovery.admin.tokens import Tokens, parse_tokens
from magnetar_core.runtime.types import KIB, ConfigurationError

log = logging.getLogger(__name__)

SETTING: Final = "managementTokensFile"
"""The setting with the path."""

# Some 100 bytes a line, and comments.
_FILE_BYTES_MAX: Final = 512 * KIB

_Stamp = tuple[int, int, int]


class TokenFile:
    """The tokens of a file. It is small, so it is read on the loop."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError."""
        self._path = path
        self._stamp = self._read_stamp()
        self._tokens: Tokens | None = self._read()

    def tokens(self) -> Tokens:
        """The tokens as they are now. Raises Refused (503)."""
        try:
            stamp = self._read_stamp()
        except ConfigurationError as error:
            if self._tokens is not None:
                log.error("nobody is admitted to the management interface: %s", error)
            self._tokens, self._stamp = None, (0, 0, 0)
        else:
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_again()
        if self._tokens is None:
            raise Refused(503, f"the file of {SETTING} cannot be used, so nobody is admitted; the log says why")
        return self._tokens

    def _read_again(self) -> None:
        try:
            self._tokens = self._read()
        except ConfigurationError as error:
            self._tokens = None
            log.error("nobody is admitted to the management interface: %s", error)
        else:
            log.warning("%s was read anew, it has %d tokens", self._path, len(self._tokens))

    def _read_stamp(self) -> _Stamp:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path} ({SETTING}): {error.strerror}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Tokens:
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
            if len(data) > _FILE_BYTES_MAX:
                raise ConfigurationError(f"{self._path} ({SETTING}) has more than {_FILE_BYTES_MAX} bytes")
            return parse_tokens(data.decode(), str(self._path))
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path} ({SETTING}): {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._path} ({SETTING}) is not UTF-8 text") from None
