"""A real ZooKeeper server for tests: on a free port, in a folder of its own, from PySpark's jars."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from magnetar.processes.cluster import reserved_ports, zookeeper_answers
from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import (
    find_pyspark_jars,
    zookeeper_command,
    zookeeper_config,
)
from magnetar_core.runtime.types import ConfigurationError


def why_not() -> str | None:
    """Why no server can be started here; None if one can."""
    try:
        find_pyspark_jars()
    except ConfigurationError as error:
        return str(error)
    return None


class ZooKeeperServer:
    """One server process. `with ZooKeeperServer(folder) as server:` stops it also when the test fails."""

    def __init__(self, folder: Path) -> None:
        self._ports = reserved_ports()
        self.port = next(self._ports)  # stays reserved: others look for free ports at the same moment
        self._log = folder / "zookeeper.log"
        self._config_file = folder / "zoo.cfg"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self._config_file.write_text(zookeeper_config(folder / "data", self.port))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = zookeeper_command(find_pyspark_jars(), self._config_file)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not zookeeper_answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"ZooKeeper did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """The server answers nothing, and does not close its connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> "ZooKeeperServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # nobody needs its data any more
        self.stop()
        self._ports.close()
