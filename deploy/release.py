"""`make release`: builds sdist and wheel into out/dist, and tries them as a user who installs them.

1. The wheel that the sdist builds is the wheel that the repository builds: nothing is missing in the sdist.
2. The wheel is installed in a new environment outside the repository. There the command line answers, a pytest run gets
   its server from the plugin, a standalone takes messages of both clients, and Spark reads them.

Ends with exit code 1 and the reason if something fails; leaves no process running.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
DIST: Final = ROOT / "out" / "dist"

# An install from the network, a start of Spark: minutes on a slow machine, never an hour.
TIMEOUT_S: Final = 1800.0

PLUGIN_TEST: Final = """
import pulsar


def test_a_message_comes_back(pulsar_server):
    client = pulsar.Client(pulsar_server.service_url)
    consumer = client.subscribe(pulsar_server.topic("t"), "s")
    client.create_producer(pulsar_server.topic("t")).send(b"hello")
    assert consumer.receive(10_000).data() == b"hello"
    client.close()
"""

PROGRAM: Final = """
import os
import sys

import magnetar
import pulsar
from magnetar.testing import standalone

os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession

assert "site-packages" in magnetar.__file__, magnetar.__file__
with standalone() as server:
    official = pulsar.Client(server.service_url)
    producer = official.create_producer("release")
    producer.send(b"by the official client")
    with magnetar.Client(server.grpc_url) as client:
        client.producer("release").send(b"by the topic API")
    official.close()
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.read.format("magnetar").options(
        **{"metadata.url": f"rocksdb:{server.directory}/data/metadata", "topic": "release", "valueFormat": "string"}
    ).load()
    found = sorted(row.value for row in frame.collect())
    spark.stop()
assert found == ["by the official client", "by the topic API"], found
print("Spark has read what both clients wrote")
"""


def run(command: Sequence[str | Path], where: Path) -> None:
    """Run *command* in *where*, without this repository's environment. Raises CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run([str(part) for part in command], cwd=where, env=environment, timeout=TIMEOUT_S, check=True)


def build(source: Path, target: str, into: Path) -> Path:
    """The one file that hatchling makes of *source*."""
    run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into], source)
    (made,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def check_sdist(sdist: Path, wheel: Path, scratch: Path) -> None:
    """Rule 1."""
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "sdist", filter="data")
    (source,) = (scratch / "sdist").iterdir()
    again = build(source, "wheel", scratch / "again")
    missing = names_in(wheel) ^ names_in(again)
    if missing:
        raise SystemExit(f"the sdist builds another wheel: {', '.join(sorted(missing)[:10])}")


def try_wheel(wheel: Path, scratch: Path) -> None:
    """Rule 2."""
    environment = scratch / "environment"
    venv.create(environment, with_pip=True)
    pip = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-deps", "--require-hashes", "-r", ROOT / "requirements" / "dev.txt"], scratch)
    run([*pip, "--no-deps", wheel], scratch)
    place = scratch / "elsewhere"
    place.mkdir()
    run([environment / "bin" / "magnetar", "--version"], place)
    (place / "test_plugin.py").write_text(PLUGIN_TEST)
    run([environment / "bin" / "python", "-m", "pytest", "-q", "test_plugin.py"], place)
    (place / "program.py").write_text(PROGRAM)
    run([environment / "bin" / "python", "program.py"], place)


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    sdist, wheel = build(ROOT, "sdist", DIST), build(ROOT, "wheel", DIST)
    with tempfile.TemporaryDirectory() as made:
        check_sdist(sdist, wheel, Path(made))
        try_wheel(wheel, Path(made))
    print(f"{sdist.relative_to(ROOT)} and {wheel.relative_to(ROOT)} work where they are installed")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: {error}")
