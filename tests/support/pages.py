"""Follows a page of the documentation word for word, as a newcomer would.

`python -m tests.support.pages PAGE FOLDER`:

```            commands, one after the other; a server goes on in "another terminal"
               (in a list the block is indented; that is taken away)
```python      a program; with functions called test_… one for pytest, which runs those of a page together; those
               that use Spark share a session
`name`:        in the line before a block: it is saved in a file of that name, and not run
```text …      anything else is for reading only
"""

import argparse
import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.processes.cluster import STATE_FILE, Cluster
from tests.support.warm import warm_folder

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

# For a Java that lives for seconds: half of what Spark takes to start are compilations that never pay, and a tenth are
# checks of classes that come from a release.
_SHORT_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_SPARK_DEFAULTS: Final = "spark.ui.enabled false\nspark.sql.shuffle.partitions 2\n"
# Starts Spark's Java as PySpark does, says where it is, and ends it at the end of its own input.
_SPARK_JAVA: Final = """
import sys
from pyspark.java_gateway import launch_gateway
at = launch_gateway().gateway_parameters
print(at.port, at.auth_token, flush=True)
sys.stdin.read()
"""

# Runs the programs that are named at its input in one session, which their `stop` leaves; says when each has ended.
_SPARK_PROGRAMS: Final = """
import runpy, sys
from pyspark.sql import SparkSession
stop, SparkSession.stop = SparkSession.stop, lambda session: None
try:
    for name in sys.stdin:
        runpy.run_path(name.strip(), run_name="__main__")
        print("the program has ended", flush=True)
finally:
    stop(SparkSession.active())
"""
_ENDED: Final = "the program has ended\n"
_USES_SPARK: Final = re.compile(r"\bspark\b")


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


def _java_environment(folder: Path) -> dict[str, str]:
    settings = folder / ".spark"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
    return {"JAVA_TOOL_OPTIONS": _SHORT_JAVA, "SPARK_CONF_DIR": str(settings)}


@contextlib.contextmanager
def spark_java(folder: Path, home: Path, network: Sequence[str]) -> Iterator[dict[str, str]]:
    """Spark's Java, started once for all programs that have these variables in their environment. What they name
    without a full path is in *folder*, and Spark itself in *home* (`tests/support/spark_session.py`); *network* is put
    before the command."""
    environment = {
        **os.environ, **_java_environment(folder), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home),
    }  # fmt: skip
    with subprocess.Popen(
        [*network, sys.executable, "-c", _SPARK_JAVA], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as keeper:  # fmt: skip
        assert keeper.stdout is not None
        port, secret = keeper.stdout.readline().split()
        yield {"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret}


class Newcomer:
    """Follows a page in a folder."""

    def __init__(
        self, folder: Path, before: Sequence[Step] = (), environment: Mapping[str, str] | None = None,
        ends: Mapping[str, int] | None = None, *, goes_on: bool = False,
    ) -> None:  # fmt: skip
        """*before* has what is typed when the page comes to a command, and *environment* what the shell has beside
        its own: what the page leaves to its reader, such as stopping a bookie at this place. *ends* has exit codes of
        commands that tell of something by them. One who *goes on* leaves a cluster as it is, for the next page."""
        self._before = list(before)
        self._ends = ends or {}
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGNETAR_")}
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment["HOME"] = str(folder)
        self._environment.update(_java_environment(folder))
        self._environment.update(environment or {})
        if not any(one.value == PLUGIN for one in importlib.metadata.entry_points(group="pytest11")):
            # Installed from an older pyproject.toml; `make` does it anew.
            self._environment["PYTEST_ADDOPTS"] = f"-p {PLUGIN}"
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._programs = 0
        self._test_programs: list[str] = []
        self._goes_on = goes_on
        self._spark_programs: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        return self._environment

    def follow_all(self, blocks: Iterable[Block]) -> None:
        """Raises AssertionError, CalledProcessError, TimeoutExpired."""
        for block in blocks:
            self.follow(block)
        self._run_tests()
        assert not self._before, f"the page does not come to {self._before[0].command!r}"

    def follow(self, block: Block) -> None:
        if block.file:
            (self._folder / block.file).write_text(block.text)
        elif block.language == "python":
            self._programs += 1
            program = self._folder / f"test_program_{self._programs}.py"
            program.write_text(block.text)
            if "def test_" in block.text:
                self._test_programs.append(program.name)
                return
            self._run_tests()
            if _USES_SPARK.search(block.text):
                self._run_with_spark(program.name)
            else:
                self._type(f"python {program.name}")
        elif not block.language:
            self._run_tests()
            for command in commands_of(block.text):
                while self._before and self._before[0].command == command:
                    self._do(self._before.pop(0).typed)
                self._do(command)

    def _run_tests(self) -> None:
        """In one run of pytest, so that they share their servers."""
        if self._test_programs:
            self._type(f"python -m pytest -q {' '.join(self._test_programs)}")
            self._test_programs.clear()

    def _run_with_spark(self, program: str) -> None:
        print(f"$ python {program}", flush=True)
        began_s = time.monotonic()
        running = self._spark_programs = self._spark_programs or subprocess.Popen(
            [sys.executable, "-c", _SPARK_PROGRAMS], cwd=self._folder, env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert running.stdin is not None
        assert running.stdout is not None
        print(program, file=running.stdin, flush=True)
        for line in running.stdout:
            if line == _ENDED:
                print(f"  ({time.monotonic() - began_s:.1f} s)", flush=True)
                return
            print(line, end="", flush=True)
        raise AssertionError(f"{program} ended with {running.wait()}")

    def _do(self, command: str) -> None:
        if _SERVER.match(command):
            self._leave_running(command)
        elif self._goes_on and command.startswith("magnetar cluster down"):
            print(f"$ {command}   (later)", flush=True)
        else:
            if command.startswith(("magnetar cluster up", "magnetar cluster down")):
                self.stop()  # as the pages say: the ports are the same, ZooKeeper goes
            self._type(command)

    def _type(self, command: str) -> None:
        print(f"$ {command}", flush=True)
        began_s = time.monotonic()
        environment = dict(self._environment)
        if "magnetar" in command:  # servers are others: they are started by what is installed
            environment["PATH"] = f"{warm_folder()}{os.pathsep}{environment['PATH']}"
        found = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=environment, timeout=TIMEOUT_S, check=False,
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
        if self._spark_programs is not None:
            self._spark_programs.communicate(timeout=TIMEOUT_S)
        self.stop()
        for state in [] if self._goes_on else self._folder.glob(f"*/{STATE_FILE}"):
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
    parser.add_argument("--goes-on", action="store_true", help="leave the cluster as it is, for the next page")
    asked = parser.parse_args()
    page = asked.page.read_text(encoding="utf-8")
    for text, other in asked.instead:
        assert text in page, f"{asked.page} does not say {text!r}"
        page = page.replace(text, other)
    ends = {command: int(code) for command, code in asked.ends}
    chosen = (
        block
        for block in blocks_of(page)
        if (not asked.section or block.section in asked.section)
        and not any(text in block.text for text in asked.without)
    )
    newcomer = Newcomer(
        asked.folder, [Step(*one) for one in asked.before], dict(asked.set), ends,
        goes_on=asked.goes_on,
    )  # fmt: skip
    try:
        newcomer.follow_all([Block("", "", "", "\n".join(asked.first)), *chosen])
    finally:
        newcomer.clean()


if __name__ == "__main__":
    main()
