"""Keys and password files as settings name them: `file:///PATH`, `data:;base64,…`, a path, or base64.

A value that cannot be read is not quoted in the error: it may be the secret itself.
"""

import base64
import binascii
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from magnetar_core.runtime.types import ConfigurationError

# Keys are below 4 KiB; a file of a hundred thousand users is some 8 MiB.
SOURCE_BYTES_MAX: Final = 16 * 1024 * 1024


def read_source(text: str, setting: str) -> bytes:
    """What *setting* names. Raises ConfigurationError."""
    if text.startswith("data:"):
        return _data(text, setting)
    if text.startswith("file:"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{setting}: write file:///PATH, with three slashes")
        return _file(unquote_to_bytes(parts.path).decode("utf-8", "surrogateescape"), setting)
    try:
        is_file = os.path.exists(text)
    except ValueError:
        is_file = False
    if is_file:
        return _file(text, setting)
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ConfigurationError(
            f"{setting}: there is no such file; write file:///PATH, data:;base64,… or the path of a file"
        ) from None


def path_in(text: str) -> str | None:
    """The path of the file that a setting names; None: the value itself is the key.

    A path that is not written as `file:///PATH` counts if the file exists, as in `read_source`.
    """
    if text.startswith("data:"):
        return None
    if text.startswith("file:"):
        return unquote_to_bytes(urlsplit(text).path).decode("utf-8", "surrogateescape")
    try:
        return text if os.path.exists(text) else None
    except ValueError:
        return None


def open_to_others(paths: Iterable[str]) -> list[str]:
    """Those files that users who are neither owner nor of the file's group may read, in order."""
    readable = []
    for path in sorted({os.path.abspath(path) for path in paths}):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mode & 0o004 and all(folder.stat().st_mode & 0o001 for folder in Path(path).parents):
                readable.append(path)
    return readable


def _data(text: str, setting: str) -> bytes:
    head, separator, body = text.removeprefix("data:").partition(",")
    if not separator:
        raise ConfigurationError(f"{setting}: a data URI has a comma: data:;base64,…")
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(unquote_to_bytes(body), validate=True)
    except (ValueError, binascii.Error):
        raise ConfigurationError(f"{setting}: what follows data:;base64, is not base64") from None


def _file(path: str, setting: str) -> bytes:
    try:
        with Path(path).open("rb") as source:
            data = source.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{setting}: cannot read {path}: {error.strerror}") from None
    if len(data) > SOURCE_BYTES_MAX:
        raise ConfigurationError(f"{setting}: {path} has more than {SOURCE_BYTES_MAX} bytes")
    return data
