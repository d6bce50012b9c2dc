"""How a page of the documentation is cut into what is typed (`tests.support.pages`), and what pages name is there."""

import re
from pathlib import Path

import pytest

from tests.support import lakehouse
from tests.support.pages import Block, Newcomer, Step, blocks_of, commands_of

ROOT = Path(__file__).parents[2]
LINKING = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/compatibility.md", "docs/lakehouse.md")
FOLDERS = "autorecovery|bookie|broker|connectors|deploy|docs|magnetar|magnetar_core|managed_ledger|tests"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md"])
def test_each_file_that_a_page_for_contributors_names_is_there(page: str) -> None:
    """Not those of a pattern, as in `tests/unit/<path of the module>`."""
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", (ROOT / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", LINKING)
def test_each_link_to_a_file_is_true(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert targets
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_page_of_the_lake_says_the_versions_that_are_tested() -> None:
    page = lakehouse.PAGE.read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+) ", (ROOT / "requirements" / "lakehouse.txt").read_text(), re.MULTILINE))
    assert f"'pyspark=={pinned['pyspark']}'" in page
    assert f"'pyiceberg[pyiceberg-core,sql-sqlite]=={pinned['pyiceberg']}'" in page
    (row,) = re.findall(r"\| Python \| Java \| PySpark \| Delta Lake \| PyIceberg \|\n\S+\n\| (.+) \|", page)
    scala, _, delta = lakehouse.jars().rpartition(":")
    assert scala == f"io.delta:delta-spark_{pinned['pyspark'].rpartition('.')[0]}_2.13"
    assert row.split(" | ")[2:] == [pinned["pyspark"], delta, pinned["pyiceberg"]]


def test_a_block_of_a_list_is_taken_without_its_indent() -> None:
    listed = "1. Look:\n   ```\n   for name in a b; do\n     echo $name\n   done\n   ```\n"
    page = f"## Disks\n{listed}2. `x.conf`:\n```ini\na=b\n```\n"
    assert [(one.section, one.language, one.file, one.text) for one in blocks_of(page)] == [
        ("Disks", "", "", "for name in a b; do\n  echo $name\ndone\n"),
        ("Disks", "ini", "x.conf", "a=b\n"),
    ]


def test_a_command_goes_on_until_the_shell_finds_it_whole() -> None:
    text = "echo one\n\nfor name in a b; do\n  echo $name\ndone\necho \\\n  two\n"
    assert list(commands_of(text)) == ["echo one", "for name in a b; do\n  echo $name\ndone", "echo    two"]
    with pytest.raises(AssertionError, match="no shell takes"):
        list(commands_of("if true; then\n"))


def test_what_the_page_leaves_to_its_reader_is_done_before_its_command(tmp_path: Path) -> None:
    (block,) = blocks_of("```\ncat said\nexit 3\n```\n")
    steps = (Step("cat said", "echo $WHO > said"), Step("exit 3", "grep -q me said"))
    newcomer = Newcomer(tmp_path, steps, {"WHO": "me"}, {"exit 3": 3})
    newcomer.follow_all([block])
    missed = Newcomer(tmp_path, [Step("echo never", "true")], ends={"exit 3": 3})
    with pytest.raises(AssertionError, match="does not come to 'echo never'"):
        missed.follow_all([block])


class Noting(Newcomer):
    """Types nothing."""

    def __init__(self, folder: Path, *, goes_on: bool = False) -> None:
        super().__init__(folder, goes_on=goes_on)
        self.typed: list[str] = []

    def _type(self, command: str) -> None:
        self.typed.append(command)


def test_tests_of_a_page_run_together_before_what_follows(tmp_path: Path) -> None:
    page = "```python\ndef test_a(): pass\n```\n```python\ndef test_b(): pass\n```\n```\necho after\n```\n"
    newcomer = Noting(tmp_path)
    newcomer.follow_all(blocks_of(page))
    assert newcomer.typed == ["python -m pytest -q test_program_1.py test_program_2.py", "echo after"]


def test_who_goes_on_leaves_the_cluster_to_the_next_page(tmp_path: Path) -> None:
    down = "magnetar cluster down --directory ./cluster"
    for goes_on in (False, True):
        newcomer = Noting(tmp_path, goes_on=goes_on)
        newcomer.follow_all([Block("", "", "", f"{down}\n")])
        assert newcomer.typed == ([] if goes_on else [down])
