"""`spark-submit` on Spark's own cluster manager: two workers, whose Python has the libraries and not the project."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import Standalone, client_of, received
from tests.support.spark_cluster import SparkCluster, bare_python, packed, packed_environment

pytestmark = [pytest.mark.spark, pytest.mark.process]

JOB = Path(__file__).parents[1] / "support" / "spark_job.py"


DRIVER = """
import pickle, sys
from pyspark_magnetar import DefaultSource
source = DefaultSource({"metadata.url": sys.argv[1], "topic": sys.argv[2]})
reader = source.reader(source.schema())
sys.stdout.buffer.write(pickle.dumps((reader, list(reader.partitions()))))
"""
TASKS = """
import pickle, sys
reader, partitions = pickle.load(sys.stdin.buffer)
import connectors
rows = sum(batch.num_rows for one in partitions for batch in reader.read(one))
print(rows, connectors.__path__[0].rpartition("/")[0])
"""


class Way(NamedTuple):
    """How the project comes to the workers."""

    options: list[str]
    environment: dict[str, str]


def with_the_job(folder: Path) -> Way:
    """The wheel goes with the job; the workers have the libraries."""
    archive = packed(folder)
    # PYTHONPATH is for the driver, where Spark looks for formats and plans streams.
    return Way(["--py-files", str(archive)], {"PYTHONPATH": str(archive), "PYSPARK_PYTHON": str(bare_python(folder))})


def in_an_environment(folder: Path) -> Way:
    """A packed environment goes with the job. It lies unpacked where the driver starts, too."""
    archive = packed_environment(folder / "environment")
    return Way(["--archives", f"{archive}#environment"], {"PYSPARK_PYTHON": "./environment/bin/python"})


@pytest.mark.long("starts a master, two workers, a driver and two executors, and the latter once more")
@pytest.mark.parametrize("way", [with_the_job, in_an_environment])
def test_a_submitted_job_reads_writes_and_follows_topics_on_two_workers(
    cluster: Cluster, namespace: str, spark_cluster: SparkCluster, tmp_path: Path, way: Callable[[Path], Way]
) -> None:
    topic, other = f"persistent://{namespace}/submitted", f"persistent://{namespace}/copied"
    AdminClient(cluster.admin_urls).create_topic(topic, 2)
    options, environment = way(tmp_path)
    with client_of(cluster.service_url) as client:
        for _ in range(4):
            send_all(client, topic, numbers(0, 500))
        command = spark_cluster.submit(
            JOB, cluster.metadata_url, cluster.service_url, topic, other, str(tmp_path / "files"), options=options
        )
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[:3000] + done.stderr[-3000:]
        found = json.loads(done.stdout.strip().splitlines()[-1])
        assert found == {"rows": 2_000, "tasks": 4, "executors": 2, "in_files": 2_000}
        assert sorted(int(one.data()) for one in received(client, other)) == sorted(4 * list(range(500)))


def test_driver_and_tasks_find_the_packed_project(
    standalone: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """What they run, without Spark around it: the driver finds the format and plans, a task reads what was pickled."""
    topic = "persistent://public/default/packed"
    send_all(client, topic, numbers(0, 500))
    environment = {**os.environ, "PYTHONPATH": str(packed(tmp_path))}
    python = str(bare_python(tmp_path))

    def run(program: str, *arguments: str, given: bytes = b"") -> bytes:
        command = [python, "-c", program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, input=given, stdout=-1, check=True).stdout

    plan = run(DRIVER, f"rocksdb:{standalone.data / 'metadata'}", topic)
    assert run(TASKS, given=plan).split() == [b"500", str(tmp_path / "magnetar.zip").encode()]


def test_the_interpreter_of_the_workers_has_no_project_of_its_own(tmp_path: Path) -> None:
    """What the test above would not notice."""
    python = bare_python(tmp_path)
    done = subprocess.run(
        [str(python), "-c", "import pyarrow, connectors"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "No module named 'connectors'" in done.stderr
