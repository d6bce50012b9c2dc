"""Follows a page of the documentation word for word, as a newcomer would.

`python -m tests.support.pages PAGE FOLDER`:

```            commands, one after the other; a server goes on in "another terminal"
```python      a program; with functions called test_… one for pytest
`name`:        in the line before a block: it is saved in a file of that name, and not run
```text …      anything else is for reading only
"""

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.processes.cluster import STATE_FILE, Cluster

# Nothing asserts a time: this only ends what hangs. The slowest is a program with Spark.
TIMEOUT_S: Final = 180.0
READY: Final = "ready"
PLUGIN: Final = "magnetar.testing.plugin"

# Commands that run until they are stopped.
_SERVER: Final = re.compile(r"magnetar (standalone|bookie --config|broker --config)\b")
_FILE: Final = re.compile(r".*`([\w.-]+)`:$")
# Findings are an answer too: the disk of this machine may be full.
_MAY_BE_1: Final = "magnetar doctor"


class Block(NamedTuple):
    section: str
    language: str
    file: str
    """Where to save it; empty: it is run."""
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    """Every fenced block, with the heading of the second level above it."""
    section = before = language = ""
    inside: list[str] | None = None
    for line in page.splitlines():
        if line.startswith("```"):
            if inside is None:
                language, inside = line.removeprefix("```").strip(), []
            else:
                found = _FILE.fullmatch(before)
                yield Block(section, language, found[1] if found else "", "\n".join(inside) + "\n")
                inside, before = None, ""
        elif inside is not None:
            inside.append(line)
        elif line.startswith("## "):
            section, before = line.removeprefix("## "), ""
        elif line.strip():
            before = line


class Newcomer:
    """Follows a page in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGNETAR_")}
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment["HOME"] = str(folder)
        if not any(one.value == PLUGIN for one in importlib.metadata.entry_points(group="pytest11")):
            # Installed from an older pyproject.toml; `make` does it anew.
            self._environment["PYTEST_ADDOPTS"] = f"-p {PLUGIN}"
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._programs = 0

    def follow(self, block: Block) -> None:
        """Raises AssertionError, CalledProcessError, TimeoutExpired."""
        if block.file:
            (self._folder / block.file).write_text(block.text)
        elif block.language == "python":
            self._programs += 1
            program = self._folder / f"test_program_{self._programs}.py"
            program.write_text(block.text)
            self._type(f"python {'-m pytest -q ' if 'def test_' in block.text else ''}{program.name}")
        elif not block.language:
            for command in block.text.replace("\\\n", " ").splitlines():
                if _SERVER.match(command):
                    self._leave_running(command)
                elif command.strip():
                    if command.startswith(("magnetar cluster up", "magnetar cluster down")):
                        self.stop()  # as the pages say: the ports are the same, ZooKeeper goes
                    self._type(command)

    def _type(self, command: str) -> None:
        print(f"$ {command}", flush=True)
        began_s = time.monotonic()
        found = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=self._environment, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        print(f"  ({time.monotonic() - began_s:.1f} s)", flush=True)
        allowed = (0, 1) if command.startswith(_MAY_BE_1) else (0,)
        assert found.returncode in allowed, f"{command!r} ended with {found.returncode}"

    def _leave_running(self, command: str) -> None:
        print(f"$ {command}   (in another terminal)", flush=True)
        log = self._folder / f"terminal-{len(self._terminals)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self._folder, env=self._environment, stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._terminals.append(process)
        deadline = time.monotonic() + TIMEOUT_S
        while READY not in log.read_text(errors="replace"):
            assert process.poll() is None, f"{command!r} ended: {log.read_text(errors='replace')}"
            assert time.monotonic() < deadline, f"{command!r} is not ready: {log.read_text(errors='replace')}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Ctrl-C in every other terminal."""
        for process in self._terminals:
            process.terminate()
        for process in self._terminals:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._terminals.clear()

    def clean(self) -> None:
        self.stop()
        for state in self._folder.glob(f"*/{STATE_FILE}"):
            Cluster(state.parent).down()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--section", action="append", default=[], help="only these, by their headings")
    parser.add_argument("--first", action="append", default=[], help="a command to begin with")
    parser.add_argument("--instead", nargs=2, action="append", default=[], metavar=("TEXT", "OTHER"))
    parser.add_argument("--without", action="append", default=[], help="no blocks that contain this")
    asked = parser.parse_args()
    page = asked.page.read_text(encoding="utf-8")
    for text, other in asked.instead:
        assert text in page, f"{asked.page} does not say {text!r}"
        page = page.replace(text, other)
    newcomer = Newcomer(asked.folder)
    try:
        newcomer.follow(Block("", "", "", "\n".join(asked.first)))
        for block in blocks_of(page):
            is_chosen = not asked.section or block.section in asked.section
            if is_chosen and not any(text in block.text for text in asked.without):
                newcomer.follow(block)
    finally:
        newcomer.clean()


if __name__ == "__main__":
    main()
