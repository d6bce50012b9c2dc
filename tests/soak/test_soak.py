"""A minute of `make soak` in `make test-all`: one round, the Python client. MAGNETAR_SOAK_SEED names another seed."""

import os
import shutil
from pathlib import Path

import pytest

from tests.soak.run import SoakFailed, soak
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.mark.long("a minute of faults")
def test_nothing_is_lost_doubled_or_stuck_in_a_minute_of_faults(tmp_path: Path) -> None:
    said: list[str] = []
    seed = os.environ.get("MAGNETAR_SOAK_SEED", "1")
    try:
        soak(tmp_path, minutes=1, seed=seed, languages=["python"], remark=said.append)
    except SoakFailed as error:
        print(*said, sep="\n")
        pytest.fail(f"seed {seed}: {error}\nlogs and data are in {tmp_path}")
    shutil.rmtree(tmp_path, ignore_errors=True)
