"""What `make check` runs for a change."""

import pytest

from tests.check import distances, is_cheap, module_of, reached


@pytest.mark.parametrize(
    ("path", "module"),
    [("broker/topic/topic.py", "broker.topic.topic"), ("broker/topic/__init__.py", "broker.topic")],
)
def test_a_file_is_a_module(path: str, module: str) -> None:
    assert module_of(path) == module


def test_what_imports_a_module_is_reached_by_the_shortest_way() -> None:
    importers = {"a": ["b", "c"], "b": ["d"], "c": ["d", "a"], "d": ["e"], "x": ["y"]}
    assert distances(importers, ["a"]) == {"a": 0, "b": 1, "c": 1, "d": 2, "e": 3}
    assert distances(importers, ["x", "d"]) == {"x": 0, "d": 0, "y": 1, "e": 1}
    assert distances(importers, []) == {}


def test_only_the_levels_of_milliseconds_are_cheap() -> None:
    assert is_cheap("tests/unit/test_check.py")
    assert not is_cheap("tests/process/test_drain.py")
    assert not is_cheap("tests/unit/broker/raw_client.py")


def test_a_change_reaches_its_own_test_first_and_those_behind_other_modules() -> None:
    found = reached(["magnetar_core/bookkeeper/wire/framing.py"])
    assert found[0] == "tests/unit/magnetar_core/bookkeeper/wire/test_framing.py"
    assert "tests/unit/bookie/serving/test_connection.py" in found
    assert "tests/unit/managed_ledger/test_position_leaving.py" not in found


def test_a_page_reaches_the_tests_that_name_it_and_a_conftest_those_beside_it() -> None:
    assert "tests/unit/test_limits_table.py" in reached(["docs/limits.md"])
    found = reached(["tests/unit/broker/grpc/conftest.py"])
    assert "tests/unit/broker/grpc/test_acks.py" in found, "it uses its fixtures and does not import it"
    assert "tests/unit/broker/test_names.py" not in found
