"""Reports what this machine lacks to run Magnetar from source, and how to install it. Standard library only."""

import re
import shutil
import subprocess
import sys

PYTHON_MIN = (3, 11)
JAVA_MIN = 17


def java_version() -> int | None:
    """Major version of the `java` on PATH; None if there is none or it does not say."""
    if shutil.which("java") is None:
        return None
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def missing() -> list[str]:
    """One sentence for each missing program or package."""
    problems = []
    if sys.version_info < PYTHON_MIN:
        problems.append(
            f"Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer is needed, this is {sys.version.split()[0]} "
            f"({sys.executable}). Install it and run `make PYTHON=python3.11 ...`."
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        problems.append("Python's venv module is not complete. On Debian and Ubuntu: apt install python3-venv.")
    version = java_version()
    if version is None or version < JAVA_MIN:
        problems.append(
            f"Java {JAVA_MIN} or newer is needed (Spark and ZooKeeper run on it), found "
            f"{version or 'none'}. On Debian and Ubuntu: apt install openjdk-17-jre-headless; "
            "on macOS: brew install openjdk@17."
        )
    return problems


if __name__ == "__main__":
    found = missing()
    for problem in found:
        print(f"Missing: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)
