"""Private keys in a folder, by name: what option `encryption.keys` is."""

from pathlib import Path
from typing import Any, Final

from magnetar_core.runtime.types import ConfigurationError

SUFFIX: Final = ".pem"


class KeyFolder:
    """NAME.pem each. A name that a producer has made up leads to no other file: only those of the folder count."""

    def __init__(self, folder: str) -> None:
        """Raises ConfigurationError if there is no key."""
        try:
            self._files = {path.stem: path for path in sorted(Path(folder).iterdir()) if path.suffix == SUFFIX}
        except OSError as error:
            raise ConfigurationError(
                f"encryption.keys={folder}: {error.strerror}; expected a folder with NAME.pem, on every "
                "machine that reads"
            ) from None
        if not self._files:
            raise ConfigurationError(
                f"encryption.keys={folder}: there is no key in it; expected NAME.pem for each key, with the private key"
            )
        self._keys: dict[str, Any] = {}

    def names(self) -> list[str]:
        """The names of the keys that are there."""
        return list(self._files)

    def key(self, name: str) -> Any:
        """None: it is not there. Raises ConfigurationError."""
        if name not in self._files:
            return None
        if name not in self._keys:
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            path = self._files[name]
            try:
                self._keys[name] = load_pem_private_key(path.read_bytes(), password=None)
            except (OSError, ValueError, TypeError) as error:
                raise ConfigurationError(
                    f"encryption.keys: {path} cannot be read as a private key without a password; expected what "
                    f"`openssl genrsa` or `openssl ecparam -genkey` writes ({type(error).__name__})"
                ) from None
        return self._keys[name]
