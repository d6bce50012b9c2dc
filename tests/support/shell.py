"""Types `magnetar …` in a process of its own, as people do (`tests/support/warm.py`)."""

import json
import os
import subprocess
from typing import Any

from magnetar.processes.cluster import Cluster
from tests.support.warm import warm_folder

# Longer than commands wait by their own --timeout.
TIMEOUT_S = 300


def run_command(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`magnetar` with *arguments*; *options* are those of `subprocess.run`."""
    return subprocess.run(
        [warm_folder() / "magnetar", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        **options,
    )  # fmt: skip


class Shell:
    """Types commands for one cluster, whose addresses are in the environment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = {
            "MAGNETAR_ADMIN_URL": ",".join(cluster.admin_urls),
            "MAGNETAR_SERVICE_URL": cluster.service_url,
            "MAGNETAR_METADATA_URL": cluster.metadata_url,
        }

    def run(self, *arguments: str, code: int = 0, **options: Any) -> str:
        """What it printed; it must end with *code*."""
        return self._ended(code, *arguments, **options).stdout

    def refused(self, *arguments: str) -> str:
        """What it printed to standard error; it must end with 2."""
        return self._ended(2, *arguments).stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def findings(self) -> list[dict[str, str]]:
        """Those of doctor, which may also say that this machine's disks are rather full."""
        return list(json.loads(run_command("doctor", "--json", env={**os.environ, **self.environment}).stdout))

    def _ended(self, code: int, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        ended = run_command(*arguments, env={**os.environ, **self.environment}, **options)
        assert ended.returncode == code, (arguments, ended.stdout, ended.stderr)
        return ended


def bookies(metadata_url: str, *words: str) -> tuple[int, Any]:
    """`magnetar bookies …` as a person runs it: exit code, and the answer."""
    found = run_command("bookies", *words, "--json", "--metadata", metadata_url)
    assert found.stdout, found.stderr
    return found.returncode, json.loads(found.stdout)
