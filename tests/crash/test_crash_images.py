"""Thousands of power cuts: at every operation of a bookie's disk, in lives that a seed draws, losing unsynced writes.

    MAGNETAR_CRASH_IMAGES   how many in all (20,000 in `make crash`)
    MAGNETAR_CRASH_SEED     the first seed; a failure names its own, and the command that replays it

Without them: two fixed seeds and as many fresh ones, which the day's date gives, as fit into a few seconds.
pytest prints the first seed in its header (`conftest.py`).
"""

import logging
import os
from collections.abc import Iterator

import pytest

from tests.support.crash_images import MODES, Run, Violation

# Pieces for pytest-xdist; each has seeds of its own.
LOTS = 8

IMAGES = int(os.environ["MAGNETAR_CRASH_IMAGES"])
SEED = int(os.environ["MAGNETAR_CRASH_SEED"])

REPLAY = "MAGNETAR_CRASH_SEED={} MAGNETAR_CRASH_IMAGES=1 python -m pytest tests/crash/test_crash_images.py -k lot_0"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log: thousands of starts after a crash warn thousands of times that the journal ends early."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def run(seed: int, images_max: int = 250) -> int:
    """Returns how many images were checked."""
    drawn = Run(seed, images_max=images_max)
    try:
        drawn.go()
    except Violation as error:
        pytest.fail(f"{error}\nTo replay it: {REPLAY.format(seed)}", pytrace=False)
    except Exception:
        print(f"seed {seed}, near {drawn.what}. To replay it: {REPLAY.format(seed)}")
        raise
    return drawn.images


@pytest.mark.parametrize("lot", [pytest.param(lot, id=f"lot_{lot}") for lot in range(LOTS)])
def test_what_was_acknowledged_is_in_every_image_of_the_disk(lot: int) -> None:
    images, seed = 0, SEED + lot
    while images < IMAGES / LOTS:
        images += run(seed)
        seed += LOTS
    print(f"{images} images, seeds {SEED + lot} to {seed - LOTS} in steps of {LOTS}")


@pytest.mark.parametrize("seed", [7, 13])
def test_seeds_that_once_found_something_find_nothing_any_more(seed: int) -> None:
    run(seed, images_max=100)


def test_a_seed_is_a_whole_run() -> None:
    lives = [Run(42, images_max=60), Run(42, images_max=60)]
    for life in lives:
        life.go()
    first, second = lives
    assert (first.images, first.operations, first.what) == (second.images, second.operations, second.what)
    assert first.story == second.story


def test_what_a_run_promises_is_drawn_by_few_seeds() -> None:
    """Every kind of step that `Run` can take happens in these seeds, so that none is dead code."""
    seen: dict[str, int] = dict.fromkeys(("deleted", "fenced", "lacs", "removed logs", "compacted logs", "refusals"), 0)
    modes: set[str] = set()
    for seed in range(60, 76):
        drawn = Run(seed, share=0.03)
        drawn.go()
        modes |= drawn.modes
        for name, count in drawn.totals().items():
            seen[name] += count
    assert all(seen.values()), seen
    assert modes == set(MODES)
