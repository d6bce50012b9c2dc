"""Spark's own cluster manager: a master and workers as processes of their own, on loopback."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Final

import pyspark

from magnetar_core.runtime.own_packages import NAMES

ROOT: Final = Path(__file__).parents[2]
HOME: Final = Path(pyspark.__file__).parent
PATIENCE_S: Final = 120.0

_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_READY: Final = re.compile(r"Successfully registered with master")
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


def packed(folder: Path) -> Path:
    """Our packages in one file, as `--py-files` takes it."""
    path = folder / "magnetar.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(ROOT / "pyspark_magnetar.py", "pyspark_magnetar.py")
        for name in NAMES:
            for file in sorted((ROOT / name).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT))
    return path


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
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        """`spark://host:port`."""

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(HOME)}
        with log.open("wb") as file:
            self._processes.append(subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *arguments], stdout=file, stderr=file, env=environment,
                cwd=self._folder, start_new_session=True,
            ))  # fmt: skip
        return log

    def __enter__(self) -> "SparkCluster":
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

    def submit(self, job: Path, *arguments: str, py_files: Path, **conf: str) -> list[str]:
        """The command that runs *job* on the cluster with `spark-submit`; the driver runs where the command does."""
        settings = {
            "spark.executor.memory": "600m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        return [
            str(HOME / "bin" / "spark-submit"), "--master", self.url, "--py-files", str(py_files), *told, str(job),
            *arguments,
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
