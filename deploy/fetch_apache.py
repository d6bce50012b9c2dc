"""Gets the Apache servers that the interop tests and benchmarks run beside ours. Standard library and Maven only.

    .cache/apache/apache-pulsar-4.0.8/        Pulsar 4.0.8 with BookKeeper 4.17.2 and ZooKeeper, about 500 MB
    .cache/apache/bookkeeper-benchmark-4.17.3.jar
    .cache/apache/spark-avro_2.13-4.1.1.jar   Spark's own reading of Avro, to compare ours with

All are ordinary Maven artifacts; Maven checks their checksums. Files that exist already are kept.
"""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

PULSAR_VERSION: Final = "4.0.8"
BENCHMARK_VERSION: Final = "4.17.3"
# The newest that Maven had when this was written; it runs in Spark 4.3, too.
SPARK_AVRO_VERSION: Final = "4.1.1"
HOME: Final = Path(__file__).resolve().parent.parent / ".cache" / "apache"
DISTRIBUTION: Final = HOME / f"apache-pulsar-{PULSAR_VERSION}"
BENCHMARK_JAR: Final = HOME / f"bookkeeper-benchmark-{BENCHMARK_VERSION}.jar"
SPARK_AVRO_JAR: Final = HOME / f"spark-avro_2.13-{SPARK_AVRO_VERSION}.jar"


def maven_copy(artifact: str, directory: Path) -> None:
    """Run Maven. Raises SystemExit with its output if it fails."""
    done = subprocess.run(
        [
            "mvn", "--quiet", "--batch-mode", "--strict-checksums", "dependency:copy",
            f"-Dartifact={artifact}", f"-DoutputDirectory={directory}",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"Maven could not get {artifact}:\n{done.stdout[-2000:]}")


def fetch() -> None:
    """Raises SystemExit if something is missing; the text says what."""
    for tool, package in (("java", "openjdk-17-jdk-headless"), ("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            sys.exit(f"Missing: `{tool}`, which runs the Apache servers. On Debian and Ubuntu: apt install {package}")
    HOME.mkdir(parents=True, exist_ok=True)
    if not (DISTRIBUTION / "bin" / "pulsar").exists():
        print(f"getting Pulsar {PULSAR_VERSION} (245 MB) from Maven Central", flush=True)
        maven_copy(f"org.apache.pulsar:pulsar-server-distribution:{PULSAR_VERSION}:tar.gz:bin", HOME)
        archive = HOME / f"pulsar-server-distribution-{PULSAR_VERSION}-bin.tar.gz"
        unpacked = HOME / "unpacking"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="tar")
        (unpacked / DISTRIBUTION.name).rename(DISTRIBUTION)
        shutil.rmtree(unpacked)
        archive.unlink()
    if not BENCHMARK_JAR.exists():
        print(f"getting BookKeeper's load generator {BENCHMARK_VERSION}", flush=True)
        maven_copy(f"org.apache.bookkeeper:bookkeeper-benchmark:{BENCHMARK_VERSION}", HOME)
    if not SPARK_AVRO_JAR.exists():
        print(f"getting Spark's Avro functions {SPARK_AVRO_VERSION}", flush=True)
        maven_copy(f"org.apache.spark:spark-avro_2.13:{SPARK_AVRO_VERSION}", HOME)


if __name__ == "__main__":
    fetch()
