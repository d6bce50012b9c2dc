"""Two keys of tokens at a time: the key is changed while the broker runs."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from broker.security import token_keys
from broker.security.token_keys import LOOK_S, TokenKeys
from broker.settings.config import BrokerConfig, load_broker_config
from broker.settings.groups.authentication import PROVIDERS
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.authentication import TOKEN
from magnetar_core.security.identity import NotValid
from magnetar_core.security.sources import read_source
from magnetar_core.security.tokens import sign
from tests.support.manual_clock import ManualClock

OLD, NEW = bytes(32), bytes(range(32))


class Keys:
    """A broker's keys in files, and what it says of tokens."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.one, self.beside = folder / "token.key", folder / "token.new.key"
        self.one.write_bytes(OLD)
        self.checked: TokenKeys | None = None

    def open(self, **settings: Any) -> None:
        settings = settings or {"token_secret_key": str(self.one), "token_secret_keys": (str(self.beside),)}
        self.checked = TokenKeys(replace(BrokerConfig(), **settings), self.clock)

    def later(self) -> None:
        self.clock.advance(LOOK_S)

    def takes(self, key: bytes, algorithm: str = "HS256") -> bool:
        assert self.checked is not None
        try:
            return self.checked.identity(sign({"sub": "ann"}, key, algorithm).encode(), 0).role == "ann"
        except NotValid:
            return False

    def both(self) -> tuple[bool, bool]:
        return self.takes(OLD), self.takes(NEW)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_a_key_is_changed_by_files_while_the_broker_runs(keys: Keys) -> None:
    keys.open()
    assert keys.both() == (True, False)
    keys.beside.write_bytes(NEW)
    assert keys.both() == (True, False), "files are looked at once a second"
    keys.later()
    assert keys.both() == (True, True)
    keys.beside.rename(keys.one)
    keys.later()
    assert keys.both() == (False, True), "the old key is away"


def test_a_key_that_is_taken_out_of_the_list_counts_no_more(keys: Keys) -> None:
    keys.beside.write_bytes(NEW)
    keys.open()
    assert keys.both() == (True, True)
    keys.beside.unlink()
    keys.later()
    assert keys.both() == (True, False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda keys: keys.beside.write_bytes(b"short"),
        lambda keys: keys.one.unlink(),
        lambda keys: keys.one.write_bytes(b""),
    ],
)
def test_files_that_cannot_be_used_leave_the_former_keys_and_one_line(
    keys: Keys, spoil: Callable[[Keys], object], caplog: pytest.LogCaptureFixture
) -> None:
    keys.open()
    spoil(keys)
    for _ in range(3):
        keys.later()
        assert keys.both() == (True, False)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the former ones stay" in caplog.text


def test_the_last_key_stays_in_force_until_another_one_is_there(keys: Keys) -> None:
    keys.open(token_secret_keys=(str(keys.one), str(keys.beside)))
    keys.one.unlink()
    keys.later()
    assert keys.both() == (True, False)
    keys.beside.write_bytes(NEW)
    keys.later()
    assert keys.both() == (False, True)


def test_without_any_key_a_broker_does_not_start(keys: Keys) -> None:
    with pytest.raises(ConfigurationError, match="none of these files is there"):
        keys.open(token_secret_keys=(str(keys.beside),))


def test_keys_that_change_while_they_are_read_are_read_once_more(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.beside.write_bytes(NEW)
    keys.open()
    keys.one.write_bytes(OLD)
    os.utime(keys.one, (1, 1))
    read = read_source

    def moved_after_the_first(text: str, setting: str) -> bytes:
        data = read(text, setting)
        if keys.beside.exists():
            keys.beside.rename(keys.one)
        return data

    monkeypatch.setattr(token_keys, "read_source", moved_after_the_first)
    keys.later()
    assert keys.takes(NEW), "it is read between the two files, and is in one of them all the time"
    keys.later()
    assert keys.both() == (False, True)


def test_the_path_of_a_file_that_has_gone_is_not_taken_for_a_key(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "k" * 44  # base64 of 33 bytes, too
    Path(name).write_bytes(OLD)
    keys.open(token_secret_key=name)
    Path(name).unlink()
    keys.later()
    assert keys.takes(OLD)


def pair(key: Any) -> tuple[bytes, bytes]:
    return (
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def test_secrets_and_public_keys_of_both_kinds_stand_beside_each_other(keys: Keys, tmp_path: Path) -> None:
    rsa_key, rsa_public = pair(rsa.generate_private_key(65537, 2048))
    curve_key, curve_public = pair(ec.generate_private_key(ec.SECP256R1()))
    for name, data in (("rsa", rsa_public), ("curve", curve_public)):
        (tmp_path / name).write_bytes(data)
    paths = (str(tmp_path / "rsa"), (tmp_path / "curve").as_uri())
    keys.open(token_secret_key=str(keys.one), token_public_keys=paths)
    assert keys.takes(OLD)
    assert keys.takes(rsa_key, "RS256")
    assert keys.takes(curve_key, "ES256")
    assert not keys.takes(NEW)


@pytest.mark.parametrize("name", ["tokenSecretKeys", "tokenPublicKeys"])
@pytest.mark.parametrize("value", ["data:;base64,AAAA", "AAAA", "keys/token.key", "file:token.key"])
def test_a_list_names_files_only(name: str, value: str) -> None:
    secure = {
        "authenticationEnabled": "true",
        "authenticationProviders": next(name for name, method in PROVIDERS.items() if method == TOKEN),
    }
    assert load_broker_config({**secure, name: "/a/key,file:///another"})
    with pytest.raises(ConfigurationError, match=f"{name}: expected the paths of files") as raised:
        load_broker_config({**secure, name: value})
    assert "AAAA" not in str(raised.value)
