"""The client processes of a round, by language: how each is built, started, told and ended."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.soak.streams import Stream
from tests.support import mixed_cluster

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
END_TIMEOUT_S: Final = 20.0
BUILD_TIMEOUT_S: Final = 600.0


class NotAvailable(Exception):
    """The client of a language cannot be built or run on this machine; the text says why."""


def build(language: str, directory: Path) -> list[str]:
    """The command that starts the client of *language*. Raises NotAvailable."""
    if language == "python":
        return [sys.executable, "-m", "tests.soak.python_client"]
    if language == "java":
        if not mixed_cluster.is_there() or shutil.which("javac") is None:
            raise NotAvailable("Apache's jars or `javac` are not there: run `make interop`")
        classes = mixed_cluster.compile_java([HERE / "java" / "SoakClient.java"], directory / "classes")
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return ["java", *options, "-cp", mixed_cluster.class_path(classes), "SoakClient"]
    assert language == "go"
    if shutil.which("go") is None:
        raise NotAvailable("there is no `go`")
    binary = directory / "soak-go"
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            ["go", "build", "-o", str(binary), "."], cwd=HERE / "go", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return [str(binary)]
        raise NotAvailable(f"`go build` says {done.stdout.strip()[-300:]}")
    raise NotAvailable(f"`go build` took longer than {BUILD_TIMEOUT_S:.0f} s")


class ClientProcess:
    """One process; its output goes to its log."""

    def __init__(self, command: Sequence[str], name: str, spec: Mapping[str, Any], streams: Sequence[Stream]) -> None:
        directory = Path(spec["directory"])
        path = directory / f"{name}.json"
        path.write_text(json.dumps({**spec, "name": name, "streams": [asdict(stream) for stream in streams]}))
        self.name = name
        self.log = directory / f"{name}.log"
        arguments = [str(path)] if "python_client" in command[-1] else list(plain(spec, streams))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=environment, cwd=ROOT,
            )  # fmt: skip

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()

    def check(self) -> str:
        """Why it has ended although nobody told it to; empty if it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        return f"{self.name} ended with {code}: {self.log.read_text(errors='replace')[-2000:].strip()}"

    def show_threads(self) -> None:
        """Make the process log where each thread waits. Go's client ends by that."""
        for kind, number in (("python", signal.SIGUSR1), ("java", signal.SIGQUIT), ("go", signal.SIGQUIT)):
            if kind == self.name and self.process.poll() is None:
                self.process.send_signal(number)

    def end(self) -> None:
        """End the process, which writes its last events; kill it if it does not end."""
        self.tell("end")
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def plain(spec: Mapping[str, Any], streams: Sequence[Stream]) -> list[str]:
    """A spec for languages without a JSON reader at hand: URL, topic, folder, seed, rate, partition to publish to
    (-1: none), and for each stream name:type:consumers:partitions, of the whole topic without partitions."""
    publish = spec["publish"][0] if spec["publish"] else -1
    told = [
        f"{stream.name}:{stream.type}:{stream.consumers}:"
        + (",".join(map(str, stream.partitions)) if stream.is_by_partition else "")
        for stream in streams
    ]
    return [
        spec["service_url"], spec["topic"], spec["directory"], spec["seed"], str(spec["rate"]), str(publish), *told,
    ]  # fmt: skip
