"""`make check`: lint, types and tests of what changed, in 90 seconds. `make lint` and `test-all` are for everything.

    python -m tests.check                    since `main`: commits of this branch, and what is not committed
    python -m tests.check --since HEAD~3     since another revision

1. Lint and types are those of the changed files, and who imports whom. Types are left out where mypy has no cache.
2. The tests are those that import a changed module, however many modules lie between: its own test file comes first,
   then the nearest.
3. A `conftest.py` reaches what is below its folder, a changed file that is no module the test files that name it.
4. Only levels that take milliseconds run, of those the nearest files. When the time is over, the rest is left out.
5. What was left out is said.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.order import CHEAP_LEVELS

ROOT: Final = Path(__file__).parents[1]
SECONDS: Final = 90.0

PACKAGES: Final = (
    "autorecovery", "bench", "bookie", "broker", "connectors", "magnetar", "magnetar_core", "managed_ledger", "tests",
)  # fmt: skip

# A file has 27 tests in the middle, which take two seconds: so many fill the time, and more need long to collect.
FILES_MAX: Final = 60

# How pytest ends when all that it found is of the levels left out.
_NO_TESTS: Final = 5

# The start of pytest's workers, and the end.
_OTHER_S: Final = 10.0


def module_of(path: str) -> str:
    """`broker/topic/topic.py` is `broker.topic.topic`, `broker/topic/__init__.py` is `broker.topic`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def distances(importers: Mapping[str, Iterable[str]], changed: Iterable[str]) -> dict[str, int]:
    """How many imports lie between a changed module and each module that it can reach; 0 for itself.

    *importers* has who imports a module directly.
    """
    found = dict.fromkeys(changed, 0)
    edge = list(found)
    while edge:
        found_now = {one: 0 for module in edge for one in importers.get(module, ()) if one not in found}
        found |= dict.fromkeys(found_now, max(found.values()) + 1)
        edge = list(found_now)
    return found


def is_cheap(path: str) -> bool:
    """A test file of a level that takes milliseconds."""
    parts = path.split("/")
    return parts[0] == "tests" and parts[1] in CHEAP_LEVELS and parts[-1].startswith("test_")


def changed_since(revision: str) -> list[str]:
    """Paths that differ from where this branch left *revision*, those that git does not know yet too."""
    base = _git("merge-base", revision, "HEAD") or [revision]
    return sorted({*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words: str) -> list[str]:
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def reached(changed: Sequence[str]) -> list[str]:
    """Test files that a change can reach (rules 2 and 3), the nearest first."""
    import grimp

    graph = grimp.build_graph(
        *PACKAGES, exclude_type_checking_imports=True, cache_dir=str(ROOT / ".import_linter_cache")
    )
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    found = distances(importers, [module_of(path) for path in changed if path.endswith(".py")])
    folders = {module.removesuffix("conftest"): far for module, far in found.items() if module.endswith(".conftest")}
    names = [Path(path).name for path in changed if not path.endswith(".py")]
    own = {f"tests/unit/{Path(path).parent}/test_{Path(path).name}" for path in changed}
    rows = []
    for path in _git("ls-files", "--cached", "--others", "--exclude-standard", "tests"):
        if Path(path).match("test_*.py") and (ROOT / path).exists():
            module = module_of(path)
            far = [one for folder, one in folders.items() if module.startswith(folder)]
            far += [found[module]] if module in found else []
            if not far and names and any(name in (ROOT / path).read_text(encoding="utf-8") for name in names):
                far = [1]
            if far:
                rows.append((0 if path in own else min(far), path))
    return [path for _, path in sorted(rows)]


def main() -> int:
    parser = argparse.ArgumentParser(description="lint, types and tests of what changed")
    parser.add_argument("--since", default="main", help="a revision of git")
    asked = parser.parse_args()
    began_s = time.monotonic()
    changed = [path for path in changed_since(asked.since) if (ROOT / path).is_file()]
    sources = [path for path in changed if path.endswith((".py", ".pyi"))]
    print(f"{len(changed)} changed files since {asked.since}, {len(sources)} of them Python")
    if not changed:
        return 0
    left_out = []
    commands = [["ruff", "check", *sources], ["ruff", "format", "--check", *sources], ["lint-imports"]]
    if not (ROOT / ".mypy_cache").exists():
        left_out.append("types: mypy has no cache yet; `make types` makes it (minutes)")
    elif sources:
        commands.append(["mypy", *sources])
    failed = [command[0] for command in commands if sources and not _runs(command)]
    tests = reached(changed)
    cheap = [path for path in tests if is_cheap(path)]
    if dear := len(tests) - len(cheap):
        left_out.append(f"{dear} files of dearer levels that it can reach: `make test` and `make test-all` run them")
    if (further := len(cheap) - FILES_MAX) > 0:
        left_out.append(f"{further} files that are further away: `make unit` runs them")
    print(f"it can reach {len(tests)} test files", flush=True)
    rest_s = max(SECONDS - _OTHER_S - (time.monotonic() - began_s), _OTHER_S)
    options = ["-n", "2", "-q", "-m", "not long and not process", f"--seconds-max={rest_s:.0f}"]
    if cheap and not _runs(["pytest", *options, *cheap[:FILES_MAX]]):
        failed.append("pytest")
    for one in left_out:
        print(f"left out: {one}")
    print(f"{'failed: ' + ', '.join(failed) if failed else 'good'}, in {time.monotonic() - began_s:.0f} s")
    return bool(failed)


def _runs(command: Sequence[str]) -> bool:
    """Whether a tool beside this interpreter ends well."""
    tool, *arguments = command
    found = subprocess.run([str(Path(sys.executable).with_name(tool)), *arguments], cwd=ROOT, check=False)
    return found.returncode in (0, _NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
