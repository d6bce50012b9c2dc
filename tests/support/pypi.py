"""Packages that some tests need, and this environment has not: got once, with their hashes, into a folder of their own.

    .cache/NAME/packages-…    what pip installs of requirements/NAME.txt

The folder comes first in PYTHONPATH; what it has in common with our own packages is the same (`make requirements`).
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


class Missing(Exception):
    """What a test asks for could not be got: PyPI or Maven did not give it."""


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Tests run in several processes."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def packages(name: str) -> Path:
    """The folder with the packages of requirements/*name*.txt. Gets them if they are missing. Raises Missing."""
    requirements = ROOT / "requirements" / f"{name}.txt"
    home = ROOT / ".cache" / name
    folder = home / f"packages-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    with alone(home):
        if not folder.exists():
            unfinished = home / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
            place = ["--target", str(unfinished), "-r", str(requirements)]
            if subprocess.run([sys.executable, "-m", "pip", "install", *options, *place], check=False).returncode:
                raise Missing(f"pip could not install {requirements.name}")
            unfinished.rename(folder)
    return folder


def before_ours(folder: Path) -> dict[str, str]:
    """The variables of processes in which *folder* comes first."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
