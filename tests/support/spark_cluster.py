"""Spark's own cluster manager: a master and workers as processes of their own, on loopback."""

import contextlib
import os
import re
import signal
import site
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.spark_session import QUICK_JAVA, QUICK_MEMORY, unpacked_home
from tests.support.wheel import built_wheel

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 120.0

_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_READY: Final = re.compile(r"Successfully registered with master")
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


def packed(folder: Path) -> Path:
    """The wheel under a name that `--py-files` takes, as docs/spark.md says."""
    return built_wheel(folder).rename(folder / "magnetar.zip")


def packed_environment(folder: Path) -> Path:
    """An environment at *folder* that has the project, and the archive of it. The libraries are those of this one."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    libraries = [one for one in site.getsitepackages() if one != str(packages)]
    # A folder that a .pth names is searched, and its own .pth, by which this tree would be found, are not run.
    (packages / "libraries.pth").write_text("".join(f"{one}\n" for one in libraries))
    with zipfile.ZipFile(built_wheel(folder)) as wheel:
        wheel.extractall(packages)
    archive = folder.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1) as made:
        made.add(folder, arcname=".")
    return archive


def bare_python(folder: Path) -> Path:
    """This interpreter with its libraries, but without the project: as on the machines of a cluster."""
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [one for one in sys.path if one != {str(ROOT)!r}]\n"
    )
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{hiding}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


class SparkCluster:
    """A master and *workers* with one core each; processes end with the context."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._scratch = folder / "scratch"
        """Temporary files of all its processes: those that are killed leave them."""
        self._java = f"-Djava.io.tmpdir={self._scratch} {QUICK_JAVA}"
        self._home = folder / "home"
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        """`spark://host:port`."""

    def _environment(self) -> dict[str, str]:
        return {"SPARK_HOME": str(self._home), "SPARK_LAUNCHER_OPTS": QUICK_JAVA}

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        environment = {
            **os.environ, **self._environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_LOCAL_DIRS": str(self._scratch), "SPARK_DAEMON_JAVA_OPTS": self._java,
        }  # fmt: skip
        with log.open("wb") as file:
            self._processes.append(subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), *arguments], stdout=file, stderr=file, env=environment,
                cwd=self._folder, start_new_session=True,
            ))  # fmt: skip
        return log

    def __enter__(self) -> "SparkCluster":
        self._scratch.mkdir(exist_ok=True)
        unpacked_home(self._home)
        try:
            place = "org.apache.spark.deploy"
            ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            log = self._start("master", f"{place}.master.Master", *ports)
            self.url = _wait_for(log, _MASTER)
            logs = []
            for number in range(self._count):
                work = str(self._folder / f"work-{number}")
                logs.append(self._start(
                    f"worker-{number}", f"{place}.worker.Worker", *ports, "-c", "1", "-m", "1g", "-d", work, self.url
                ))  # fmt: skip
            for log in logs:
                _wait_for(log, _READY)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a worker's executors are in its group
            process.wait()

    def executors(self) -> list[int]:
        """The processes of executors that run on these workers now."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if _EXECUTOR in command and self.url.encode() and str(self._folder).encode() in _cwd(entry):
                    found.append(int(entry.name))
        return sorted(found)

    def submit(self, job: Path, *arguments: str, options: Sequence[str], **conf: str) -> list[str]:
        """The command that runs *job* on the cluster with `spark-submit`; the driver runs where the command does."""
        settings = {
            "spark.executor.memory": "600m",
            "spark.driver.memory": QUICK_MEMORY,
            "spark.local.dir": str(self._scratch),
            "spark.driver.extraJavaOptions": self._java,
            "spark.executor.extraJavaOptions": self._java,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        environment = [f"{name}={value}" for name, value in self._environment().items()]
        return [
            "env", *environment, str(self._home / "bin" / "spark-submit"), "--master", self.url, *options, *told,
            str(job), *arguments,
        ]  # fmt: skip


def _cwd(process: Path) -> bytes:
    try:
        return os.readlink(bytes(process / "cwd"))
    except OSError:
        return b""


def _wait_for(log: Path, expression: re.Pattern[str]) -> str:
    """The first group of what the expression finds, or all of it. Raises AssertionError."""
    for _ in range(int(PATIENCE_S * 20)):
        found = expression.search(log.read_text(errors="replace"))
        if found is not None:
            return found[found.re.groups]
        time.sleep(0.05)
    raise AssertionError(f"{expression.pattern} did not appear in {log.read_text(errors='replace')[-2000:]}")
