"""The generated protobuf code is up to date: `make proto` would generate the same from the .proto files."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("magnetar_core", "managed_ledger", "bookie", "broker")
PROTOS = sorted(str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.proto"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything generated anew, in one go as in the Makefile (the files import each other)."""
    pytest.importorskip("grpc_tools", reason="the generator belongs to the tools of development")
    place = tmp_path_factory.mktemp("protos")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={place}", f"--pyi_out={place}", *PROTOS]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return place


def test_there_are_protos() -> None:
    assert len(PROTOS) >= 6


@pytest.mark.parametrize("suffix", ["_pb2.py", "_pb2.pyi"])
@pytest.mark.parametrize("proto", PROTOS)
def test_the_committed_code_is_what_is_generated(generated: Path, proto: str, suffix: str) -> None:
    name = proto.removesuffix(".proto") + suffix
    assert (ROOT / name).read_bytes() == (generated / name).read_bytes(), f"{name} is not up to date: run `make proto`"


def test_nothing_was_generated_from_protos_that_are_gone() -> None:
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*_pb2.*") if path.suffix in (".py", ".pyi"))
    wanted = {proto.removesuffix(".proto") + suffix for proto in PROTOS for suffix in ("_pb2.py", "_pb2.pyi")}
    assert {str(path.relative_to(ROOT)) for path in found} == wanted


@pytest.mark.parametrize("proto", PROTOS)
def test_every_proto_is_ours_by_package(proto: str) -> None:
    """A name of Apache's would collide with their generated code in one interpreter."""
    text = (ROOT / proto).read_text(encoding="utf-8")
    assert 'syntax = "proto2";' in text or 'syntax = "proto3";' in text
    assert "\npackage magnetar." in text
