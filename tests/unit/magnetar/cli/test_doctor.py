"""What the doctor looks at on its own machine."""

from pathlib import Path

import pytest

from magnetar.cli.doctor import _open_folders
from magnetar_core.runtime.files import OsFiles


def test_the_doctor_looks_at_the_folders_of_a_standalone_on_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("metadata", "bookie-1/journal/current", "bookie-1/ledgers/current", "bookie-2/journal/current"):
        (tmp_path / name).mkdir(parents=True)
    opened = {str(tmp_path / "metadata"), str(tmp_path / "bookie-1/journal/current")}
    monkeypatch.setattr(OsFiles, "lets_others_in", lambda _, directory: directory in opened)
    assert set(_open_folders(f"rocksdb:{tmp_path}/metadata")) == opened
    assert _open_folders("zk:somewhere:2181") == ()
    assert _open_folders(f"rocksdb:{tmp_path}/nowhere/metadata") == ()
