"""The topic API for programs in other languages: a client in Go, generated from topics.proto."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.go_programs import build_go
from tests.support.processes import Standalone

HERE = Path(__file__).parent


def test_a_program_in_go(cell: Callable[[str, str], None], tmp_path: Path) -> None:
    cell("a Go program made from topics.proto", "our topic API")
    program = build_go(HERE / "go_topics", tmp_path / "topics")
    with Standalone(tmp_path / "data") as server:
        done = subprocess.run(
            [str(program), server.grpc_address], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("END")
    assert done.stdout.count("HELD ") == 9
