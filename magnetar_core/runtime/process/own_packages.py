"""Protects Magnetar's packages, which have plain names (`broker`, `bookie`, …), from others of the same names.

The package that comes first on Python's path hides the other one. Server processes are started without the current
folder on the path (`-P`), and with no folder of PYTHONPATH before Magnetar's. If a package is still hidden, the
error names the folder. Standard library only.
"""

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from magnetar_core.runtime.types import MagnetarError

NAMES: Final = ("autorecovery", "bookie", "broker", "connectors", "magnetar", "magnetar_core", "managed_ledger")

HOME: Final = Path(__file__).resolve().parents[3]
"""The folder that holds all our packages: the one of installed packages, or a checkout."""


class HiddenPackage(MagnetarError, ImportError):
    """Python finds a foreign package under the name of one of ours."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that starts a module of ours in a separate process; see `python_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """*environ* for a process of ours: without folders that hide our packages, and with the checkout if we run from
    one."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [entry for entry in entries if not _hides_own_packages(Path(entry))]
    if not is_installed():
        kept.insert(0, str(HOME))
    environment = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    if kept:
        environment["PYTHONPATH"] = os.pathsep.join(kept)
    return environment


def leave_out_current_folder() -> None:
    """Take the current folder off the path, unless it is our home. `python -m magnetar` puts it there."""
    if not sys.flags.safe_path and sys.path and Path(sys.path[0] or ".").resolve() not in (HOME, _scripts()):
        del sys.path[0]


def check_own_packages(names: Iterable[str] = NAMES) -> None:
    """Raises HiddenPackage if Python finds a foreign package under one of *names*."""
    for name in names:
        folder = _place(_spec(name))
        if folder is not None and folder != HOME:
            what = folder / name if (folder / name).is_dir() else folder / f"{name}.py"
            raise HiddenPackage(
                f"{what} hides Magnetar's own package {name} (in {HOME}): {folder} comes first on Python's path. "
                f"Start from another folder or leave {folder} out of PYTHONPATH, or give that package another name"
            )


def _hides_own_packages(folder: Path) -> bool:
    if folder.resolve() == HOME:
        return False
    return any(_place(PathFinder.find_spec(name, [str(folder)])) is not None for name in NAMES)


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that was made by hand
        return None


def _place(spec: ModuleSpec | None) -> Path | None:
    """The folder that contains a package or module; None for a folder without `__init__.py`, which hides nothing."""
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parents[1] if spec.submodule_search_locations is not None else origin.parent


def is_installed() -> bool:
    """Whether our home is one of the folders where Python searches for installed packages."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    return HOME in [Path(folder).resolve() for folder in folders]


def _scripts() -> Path:
    """The folder of the command `magnetar`."""
    return Path(sysconfig.get_path("scripts")).resolve()
