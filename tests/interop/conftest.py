"""Collects which cells of the swap matrix held; `--write-matrix FILE` renders docs/INTEROP.md from them.

    @pytest.mark.cell("our broker", "our bookies")

names the row and the column of a test; of a parametrised column the value is a parameter, so tests may also call
the `cell` fixture. A cell is green when all of its tests passed.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.fetch_apache import PULSAR_VERSION
from tests.support import interop_matrix, mixed_cluster
from tests.support.interop_matrix import Examples, Outcome
from tests.support.spark_session import spark_session

_CELL = pytest.StashKey[tuple[str, str]]()
_EXAMPLES = pytest.StashKey[Examples]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", metavar="FILE", help="write the swap matrix as a page")
    parser.addoption("--write-admin-table", metavar="FILE", help="write what pulsar-admin was answered as a page")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not mixed_cluster.is_there():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="Apache's servers are not there: run `make interop`"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    cell = item.stash.get(_CELL, None)
    if cell is not None and (report.when == "call" or report.outcome != "passed"):
        reason = str(call.excinfo.value).strip().splitlines()[0] if call.excinfo and str(call.excinfo.value) else ""
        report.user_properties.append(
            ("cell", Outcome(*cell, item.name, report.outcome, reason, round(report.duration, 1)))
        )
    if report.when == "call" and (examples := item.stash.get(_EXAMPLES, None)) is not None:
        report.user_properties.append(("examples", examples))
    return report  # type: ignore[return-value]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _collected.extend(Outcome._make(value) for name, value in report.user_properties if name == "cell")  # type: ignore[arg-type]
    _examples.extend(Examples._make(value) for name, value in report.user_properties if name == "examples")  # type: ignore[arg-type]


_collected: list[Outcome] = []
_examples: list[Examples] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--write-matrix")
    if target and not hasattr(session.config, "workerinput") and (_collected or _examples):
        day = time.strftime("%Y-%m-%d", time.gmtime())
        line = "" if mixed_cluster.LINE == PULSAR_VERSION else mixed_cluster.LINE
        text = interop_matrix.page(_collected, mixed_cluster.versions(), day, _examples, line=line)
        Path(target).write_text(text, encoding="utf-8")


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`cell(row, column)`: which cell of the matrix this test fills."""

    def name(row: str, column: str) -> None:
        request.node.stash[_CELL] = (row, column)

    return name


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> Callable[[Examples], None]:
    """`examples(counts)`: how the examples of a page of Apache's documentation were answered, for the matrix's page."""

    def told(counts: Examples) -> None:
        request.node.stash[_EXAMPLES] = counts

    return told


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("magnetar interop") as session:
        yield session
