"""Projects with packages of the same names as ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_core.runtime.process import own_packages
from magnetar_core.runtime.process.own_packages import (
    HOME,
    HiddenPackage,
    check_own_packages,
    python_command,
    python_environment,
)


def project(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    return folder


def run(command: list[str], folder: Path, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": "", **environ}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_our_own_packages_are_found_here() -> None:
    check_own_packages()


@pytest.mark.parametrize("name", ["bookie", "broker", "connectors", "managed_ledger"])
def test_the_folder_that_hides_a_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(project(tmp_path, name)))
    for known in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    with pytest.raises(HiddenPackage, match=rf"^{tmp_path / name} hides Magnetar's own package {name} .*{tmp_path}"):
        check_own_packages()


def test_a_module_hides_as_well_and_a_folder_without_code_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for known in [one for one in sys.modules if one.partition(".")[0] == "broker"]:
        monkeypatch.delitem(sys.modules, known)
    (tmp_path / "broker").mkdir()
    check_own_packages()
    (tmp_path / "broker").rmdir()
    (tmp_path / "broker.py").touch()
    with pytest.raises(HiddenPackage, match=rf"^{tmp_path / 'broker.py'} hides"):
        check_own_packages()


def test_the_command_works_in_a_folder_with_such_packages(tmp_path: Path) -> None:
    """The settings of a broker are read (and refused), which shows that its package can be imported."""
    project(tmp_path, "broker", "bookie")
    (tmp_path / "b.conf").write_text("clusterNme=x\n")
    for command in (
        [sys.executable, "-m", "magnetar", "broker", "--config", "b.conf"],
        python_command("magnetar", "broker", "--config", "b.conf"),
    ):
        found = run(command, tmp_path, {})
        assert (found.returncode, found.stderr) == (
            1, "magnetar: b.conf: unknown setting clusterNme; did you mean clusterName?\n",
        )  # fmt: skip


def test_the_command_names_the_folder_of_pythonpath(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", "broker")
    command = [sys.executable, "-m", "magnetar", "broker"]
    found = run(command, tmp_path, {"PYTHONPATH": str(folder)})
    assert found.returncode == 2
    assert found.stderr.startswith(f"magnetar: {folder / 'broker'} hides Magnetar's own package broker")


def test_a_process_of_ours_gets_a_path_on_which_nothing_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding, harmless = project(tmp_path / "a", "bookie"), project(tmp_path / "b", "shop")
    given = {"HOME": "/h", "PYTHONPATH": os.pathsep.join([str(hiding), "", str(harmless)])}
    monkeypatch.setattr(own_packages, "is_installed", lambda: True)
    assert python_environment(given) == {"HOME": "/h", "PYTHONPATH": str(harmless)}
    assert python_environment({"PYTHONPATH": str(hiding)}) == {}
    monkeypatch.setattr(own_packages, "is_installed", lambda: False)
    assert python_environment(given)["PYTHONPATH"].split(os.pathsep) == [str(HOME), str(harmless)]
