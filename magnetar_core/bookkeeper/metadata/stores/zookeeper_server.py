"""The command and the configuration of a ZooKeeper server from PySpark's jars. It starts nothing."""

import importlib.util
import shutil
from pathlib import Path
from typing import Final

from magnetar_core.runtime.types import ConfigurationError

# What the server needs; without metrics-core it ends with NoClassDefFoundError …/Reservoir. commons-* are not
# needed as long as its HTTP admin server is off.
_JARS: Final = (
    "zookeeper-3*",
    "zookeeper-jute-*",
    "slf4j-api-*",
    "netty-*",
    "snappy-java*",
    "metrics-core*",
    "log4j-*",
)


def find_pyspark_jars() -> Path:
    """The folder with PySpark's jars.

    Raises ConfigurationError if PySpark or Java is missing; the text tells how to get them.
    """
    if shutil.which("java") is None:
        raise ConfigurationError(
            "no `java` on the PATH: ZooKeeper needs Java 17 or newer (Debian: apt-get install default-jre-headless)"
        )
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("PySpark is not installed, whose jars hold ZooKeeper: pip install 'magnetar[spark]'")
    jars = Path(spec.origin).parent / "jars"
    if not any(jars.glob(_JARS[0])):
        raise ConfigurationError(f"{jars} has no zookeeper jar; this PySpark does not bring one")
    return jars


def zookeeper_command(jars: Path, config_file: Path, heap_mb: int = 128) -> list[str]:
    """The arguments that start a server in the foreground. SIGTERM stops it (exit code 143)."""
    class_path = ":".join(str(jar) for pattern in _JARS for jar in sorted(jars.glob(pattern)))
    return [
        "java",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # starts in about a second instead of two; the load is small
        "-Dzookeeper.admin.enableServer=false",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Djava.awt.headless=true",
        "-cp",
        class_path,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config_file),
    ]


def zookeeper_config(
    data_dir: Path | str, port: int, shortest_session_ms: int = 1_000, address: str = "127.0.0.1"
) -> str:
    """The text of a zoo.cfg for one server on its own. The longest session is ten times the shortest.

    ZooKeeper ends a session at the first multiple of its tick after the session's time is over. So a tick is a tenth of
    the shortest session, and not half of it, as it would be by ZooKeeper's own rule (sessions of 2 to 20 ticks).
    """
    return (
        f"tickTime={shortest_session_ms // 10}\n"
        f"minSessionTimeout={shortest_session_ms}\n"
        f"maxSessionTimeout={10 * shortest_session_ms}\n"
        f"dataDir={data_dir}\n"
        f"clientPort={port}\n"
        f"clientPortAddress={address}\n"
        "maxClientCnxns=0\n"
        "admin.enableServer=false\n"
        "4lw.commands.whitelist=ruok,srvr,mntr\n"
        # Removes old snapshots: without this a long-running server fills its disk.
        "autopurge.snapRetainCount=3\n"
        "autopurge.purgeInterval=1\n"
    )
