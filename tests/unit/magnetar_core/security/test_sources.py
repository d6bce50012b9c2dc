"""Where settings name a key or a file of passwords."""

import base64
from pathlib import Path

import pytest

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.sources import read_source

SECRET = b"\x00 a key"


def test_every_form_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a key"
    path.write_bytes(SECRET)
    text = base64.b64encode(SECRET).decode()
    for source in (str(path), f"file://{path}", f"file://localhost{path}", f"data:;base64,{text}", text):
        assert read_source(source, "tokenSecretKey") == SECRET


def test_a_file_of_another_host_is_refused(tmp_path: Path) -> None:
    for source in ("file://server/key", "file://key"):
        with pytest.raises(ConfigurationError, match="tokenSecretKey: write file:///PATH, with three slashes"):
            read_source(source, "tokenSecretKey")


def test_what_cannot_be_read_is_not_quoted(tmp_path: Path) -> None:
    for source in ("no secret!", "data:no secret"):
        with pytest.raises(ConfigurationError) as raised:
            read_source(source, "tokenSecretKey")
        assert "no secret" not in str(raised.value)
