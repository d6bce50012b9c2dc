"""Types `magnetar …` in a process of its own, as people do."""

import json
import os
import subprocess
import sys
from typing import Any

from magnetar.processes.cluster import Cluster

TIMEOUT_S = 90


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
        found: subprocess.CompletedProcess[str] = subprocess.run(
            [sys.executable, "-m", "magnetar", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, **self.environment}, **options,
        )  # fmt: skip
        assert found.returncode == code, (arguments, found.stdout, found.stderr)
        return found.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


def bookies(metadata_url: str, *words: str) -> tuple[int, Any]:
    """`magnetar bookies …` as a person runs it: exit code, and the answer."""
    command = [sys.executable, "-m", "magnetar", "bookies", *words, "--json", "--metadata", metadata_url]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout, found.stderr
    return found.returncode, json.loads(found.stdout)
