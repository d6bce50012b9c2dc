"""The data folder of a standalone belongs to one process at a time: the one that runs, or a backup of it."""

import contextlib
from pathlib import Path

from magnetar_core.runtime.files import Lock, OsFiles
from magnetar_core.runtime.types import MagnetarError


class DataInUse(MagnetarError):
    """Another process uses the same folder."""


def lock_folder(data: Path, files: OsFiles) -> Lock:
    """The lock of a standalone's folder, which is made if it is missing. Raises DataInUse, MagnetarError."""
    try:
        files.make_directories(str(data))
        return files.lock(str(data / "lock"))
    except BlockingIOError:
        raise DataInUse(
            f"{data} is in use by another magnetar standalone; stop that one, or give another folder with --data"
        ) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            data.rmdir()
        raise MagnetarError(f"cannot use {data}: {error.strerror}") from None
