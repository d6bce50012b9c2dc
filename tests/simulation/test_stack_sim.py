"""Lives of whole clusters, as `make sim` lives thousands of them (`tests.simulation.stack.life` has the rules)."""

import os
import subprocess
import sys

import pytest

from tests.simulation.stack.__main__ import LIFE_S

# Seeded bugs are tried against more of them (`python -m tests.mutants --lives`).
LIVES = int(os.environ.get("MAGNETAR_LIVES", "3"))


def live(first: int, end: int) -> str:
    """What the lives of these seeds print. AssertionError with the stories of those that broke a rule."""
    lived = subprocess.run(
        [sys.executable, "-m", "tests.simulation.stack", str(first), str(end), "--jobs", "1", "--until-broken"],
        capture_output=True, text=True, timeout=LIFE_S * (end - first), check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert lived.returncode == 0, lived.stdout + lived.stderr
    return lived.stdout


def of_life(printed: str) -> str:
    """What happened in the first life: its line without the seconds that it took."""
    return printed.splitlines()[0].rpartition("; ")[2]


@pytest.fixture(scope="module")
def lives() -> str:
    """Seeds 0 to `LIVES`."""
    return live(0, LIVES)


def test_nothing_acknowledged_is_lost_in_the_lives_of_clusters(lives: str) -> None:
    assert lives.count("acknowledged") == LIVES + 1, "each of them has acknowledged messages, and all together"
    assert "broke a rule: none" in lives


def test_a_seed_is_the_same_life_each_time(lives: str) -> None:
    """Seed 0, as the first of several lives and alone."""
    again = live(0, 1)
    assert of_life(again) == of_life(lives)


@pytest.mark.long("thirty lives more; three are in `make test`")
def test_nothing_acknowledged_is_lost_in_thirty_lives() -> None:
    live(140, 170)


@pytest.mark.parametrize("seed", [19, 22, 233, 259, 314, 400])
@pytest.mark.long("a seed that broke a rule once is lived again; what is drawn has changed since")
def test_nothing_acknowledged_is_lost_in_lives_that_broke_a_rule_once(seed: int) -> None:
    live(seed, seed + 1)


def test_a_rule_that_is_broken_is_told_with_its_story() -> None:
    """Clients that lose what they receive."""
    code = (
        "import sys\n"
        "from tests.simulation.stack import __main__ as main, pulsar_client\n"
        "pulsar_client.Consumer.arrived = lambda *_: None\n"
        "(outcome,) = main.run([5], jobs=1, without=['1', '2'])\n"
        "assert not {'1', '2'} & set(outcome['parts']), outcome['parts']\n"
        "assert {'t0', '3'} <= set(outcome['parts']), outcome['parts']\n"
        "sys.exit(bool(outcome['error']))\n"
    )
    lived = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIFE_S, check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert lived.returncode == 1, lived.stderr
    assert "did not get" in lived.stdout
    assert "the faults end" in lived.stdout


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("pulsar_client.Consumer.acknowledge = lambda *_, **options: True", "has a backlog of"),
        ("pulsar_client.Consumer.permits = property(lambda client: 1000)", "may be sent"),
    ],
)
def test_what_is_left_at_the_end_is_told(mistake: str, told: str) -> None:
    """Clients that acknowledge nothing, and clients that have asked for more than the broker knows of. The other
    checks: `test_life_checks`."""
    code = (
        "import sys\n"
        "from tests.simulation.stack import __main__ as main, life, pulsar_client\n"
        "life.MENDED_S = 20.0\n"
        f"{mistake}\n"
        "(outcome,) = main.run([5], jobs=1, without=[*life.OTHERS, *life.MORE, 't1', 't2', *map(str, range(1, 100))])\n"
        "sys.exit(bool(outcome['error']))\n"
    )
    lived = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIFE_S, check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert lived.returncode == 1, lived.stdout + lived.stderr
    assert told in lived.stdout
