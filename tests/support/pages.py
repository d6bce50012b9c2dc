"""Follows a page of the documentation word for word, as a newcomer would.

`python -m tests.support.pages PAGE FOLDER`:

```            commands, one after the other; a server goes on in "another terminal"
               (in a list the block is indented; that is taken away)
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.processes.cluster import STATE_FILE, Cluster

# Nothing asserts a time: this only ends what hangs. The slowest is a program with Spark.
TIMEOUT_S: Final = 180.0
READY: Final = "ready"
PLUGIN: Final = "magnetar.testing.plugin"

# Commands that run until they are stopped.
_SERVER: Final = re.compile(r"magnetar (standalone|bookie --config|broker --config|autorecovery --config)\b")
_FILE: Final = re.compile(r".*`([\w.-]+)`:$")
_FENCE: Final = re.compile(r"( *)```(.*)")
# Findings are an answer too: the disk of this machine may be full.
_MAY_BE_1: Final = "magnetar doctor"


class Step(NamedTuple):
    """What a reader does by himself before he goes on."""

    command: str
    """Of the page."""
    typed: str


class Block(NamedTuple):
    section: str
    language: str
    file: str
    """Where to save it; empty: it is run."""
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    """Every fenced block, with the heading of the second level above it."""
    section = before = language = ""
    indent = 0
    inside: list[str] | None = None
    for line in page.splitlines():
        if fence := _FENCE.fullmatch(line):
            if inside is None:
                indent, language, inside = len(fence[1]), fence[2].strip(), []
            else:
                found = _FILE.fullmatch(before)
                yield Block(section, language, found[1] if found else "", "\n".join(inside) + "\n")
                inside, before = None, ""
        elif inside is not None:
            assert not line[:indent].strip(), f"{line!r} begins left of its block"
            inside.append(line[indent:])
        elif line.startswith("## "):
            section, before = line.removeprefix("## "), ""
        elif line.strip():
            before = line


def commands_of(text: str) -> Iterator[str]:
    """The commands of a block: a line each; one that the shell does not find whole has the next line as well."""
    command = ""
    for line in text.replace("\\\n", " ").splitlines():
        command = f"{command}\n{line}" if command else line
        if not command.strip():
            command = ""
        elif subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False).returncode == 0:
            yield command
            command = ""
    assert not command, f"no shell takes {command!r}"


class Newcomer:
    """Follows a page in a folder."""

    def __init__(
        self, folder: Path, before: Sequence[Step] = (), environment: Mapping[str, str] | None = None,
        ends: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """*before* has what is typed when the page comes to a command, and *environment* what the shell has beside
        its own: what the page leaves to its reader, such as stopping a bookie at this place. *ends* has exit codes of
        commands that tell of something by them."""
        self._before = list(before)
        self._ends = ends or {}
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGNETAR_")}
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment["HOME"] = str(folder)
        self._environment.update(environment or {})
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
            for command in commands_of(block.text):
                while self._before and self._before[0].command == command:
                    self._do(self._before.pop(0).typed)
                self._do(command)

    def check_steps(self) -> None:
        """Nothing is left that was to be typed before a command, so the page has all of those, in their order."""
        assert not self._before, f"the page does not come to {self._before[0].command!r}"

    def _do(self, command: str) -> None:
        if _SERVER.match(command):
            self._leave_running(command)
        else:
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
        allowed = (0, 1) if command.startswith(_MAY_BE_1) else (self._ends.get(command, 0),)
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
    parser.add_argument(
        "--before", nargs=2, action="append", default=[], metavar=("COMMAND", "TYPED"),
        help="what is typed when the page comes to this command, in the page's order",
    )  # fmt: skip
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="in the shell")
    parser.add_argument("--ends", nargs=2, action="append", default=[], metavar=("COMMAND", "CODE"))
    asked = parser.parse_args()
    page = asked.page.read_text(encoding="utf-8")
    for text, other in asked.instead:
        assert text in page, f"{asked.page} does not say {text!r}"
        page = page.replace(text, other)
    ends = {command: int(code) for command, code in asked.ends}
    newcomer = Newcomer(asked.folder, [Step(*one) for one in asked.before], dict(asked.set), ends)
    try:
        newcomer.follow(Block("", "", "", "\n".join(asked.first)))
        for block in blocks_of(page):
            is_chosen = not asked.section or block.section in asked.section
            if is_chosen and not any(text in block.text for text in asked.without):
                newcomer.follow(block)
        newcomer.check_steps()
    finally:
        newcomer.clean()


if __name__ == "__main__":
    main()
