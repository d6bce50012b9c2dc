"""Behaviour that all servers share: exit codes, the order of stopping, how an error is shown."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from magnetar.processes.servers import read_broker_settings
from magnetar_core.runtime.config import setting
from magnetar_core.runtime.process.daemon import Shutdown, read_settings, run
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError, MagnetarError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_parts_in_the_opposite_order(number: signal.Signals) -> None:
    stopped = []

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        for name in ("folder", "metadata", "broker"):

            async def stop(name: str = name) -> None:
                stopped.append(name)

            parts.add(name, stop)
        os.kill(os.getpid(), number)

    assert run(start) == 0
    assert stopped == ["broker", "metadata", "folder"]


def test_a_signal_while_it_starts_stops_what_was_started() -> None:
    stopped = []

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        async def stop() -> None:
            stopped.append("metadata")

        parts.add("metadata", stop)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    assert run(start) == 0
    assert stopped == ["metadata"]


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("a setting is wrong"), 1), (MagnetarError("the port is taken"), 2)]
)
def test_an_error_at_the_start_is_one_line(capsys: pytest.CaptureFixture[str], error: MagnetarError, code: int) -> None:
    stopped = []

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        async def stop() -> None:
            stopped.append("metadata")

        parts.add("metadata", stop)
        raise error

    assert run(start) == code
    assert capsys.readouterr().err == f"magnetar: {error}\n"
    assert stopped == ["metadata"]


def test_a_part_that_is_lost_ends_the_process_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def start(parts: Parts, shutdown: Shutdown) -> None:
        asyncio.get_running_loop().call_soon(shutdown.fail, OSError("No space left on device"))
        asyncio.get_running_loop().call_soon(shutdown.fail, OSError("and what followed from it"))

    assert run(start) == 2
    assert capsys.readouterr().err == "magnetar: No space left on device\n"


def test_a_part_that_does_not_stop_does_not_keep_the_others() -> None:
    stopped = []

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        async def stop() -> None:
            stopped.append("folder")

        async def fail() -> None:
            raise RuntimeError("it hangs together badly")

        parts.add("folder", stop)
        parts.add("broker", fail)
        shutdown.request()

    assert run(start) == 0
    assert stopped == ["folder"]


def test_settings_come_from_defaults_file_environment_and_options_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("clusterName=file\nmanagedLedgerDefaultEnsembleSize=5\n")
    monkeypatch.setenv("PULSAR_PREFIX_advertisedAddress", "environment")
    found = read_broker_settings(
        path,
        defaults={"clusterName": "default", "bindAddress": "127.0.0.1"},
        overrides={"brokerServicePort": "7"},
    )
    assert (found.cluster_name, found.bind_address, found.ensemble_size) == ("file", "127.0.0.1", 5)
    assert (found.advertised_address, found.service_port) == ("environment", 7)


def test_what_is_wrong_with_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("clusterNme=x\nbrokerServicePort=many\n")
    with pytest.raises(ConfigurationError, match=rf"^{path}: ") as refused:
        read_broker_settings(path)
    assert "did you mean clusterName?" in str(refused.value)
    assert "brokerServicePort=many" in str(refused.value)
    path.write_text("just words\n")
    with pytest.raises(ConfigurationError, match=rf"{path} line 1: 'just words' is not name=value"):
        read_broker_settings(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=rf"cannot read {path}: it is not UTF-8 text"):
        read_broker_settings(path)
    with pytest.raises(ConfigurationError, match=rf"cannot read {tmp_path / 'none'}: No such file"):
        read_broker_settings(tmp_path / "none")


def test_settings_of_any_server_are_read_with_all_their_problems(tmp_path: Path) -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Config:
        port: int = setting("port", 1, help="Where.")
        size: int = setting("size", 1, help="How much.")

    path = tmp_path / "x.conf"
    path.write_text("port=a\nsize=b\ncolour=c\n")
    with pytest.raises(ConfigurationError) as refused:
        read_settings(Config, path)
    for words in (str(path), "port=a", "size=b", "unknown setting colour"):
        assert words in str(refused.value)
