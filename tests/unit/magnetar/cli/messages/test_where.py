"""Which messages fit the conditions of `--where`."""

import pytest

from magnetar.cli.messages.where import BadCondition, Facts, fits_all

ORDER = Facts(
    key="order-7",
    text='{"total": 12}',
    properties={"region": "eu", "a.b": "1", "empty": ""},
    value={"total": 12, "paid": True, "by": {"name": "Ann"}, "note": None, "lines": [1]},
)


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ("key=order-7", True),
        ("key=order", False),
        ("key~^order-", True),
        ("key!=order-8", True),
        ("key!~7$", False),
        ("value~total.*12", True),
        ("value.total=12", True),
        ("value.paid=true", True),
        ("value.by.name=Ann", True),
        ("value.note=null", True),
        ("value.lines=[1]", False),
        ("value.by={}", False),
        ("value.nothing=1", False),
        ("value.nothing!=1", True),
        ("value.total.more=1", False),
        ("region=eu", True),
        ("region!=eu", False),
        ("a.b=1", True),
        ("empty=", True),
        ("missing=", False),
        ("missing!~x", True),
        ("region=e=u", False),
    ],
)
def test_a_condition(condition: str, fits: bool) -> None:
    assert fits_all([condition])(ORDER) is fits


def test_all_conditions_have_to_fit() -> None:
    assert fits_all(["key~order", "region=eu"])(ORDER)
    assert not fits_all(["key~order", "region=us"])(ORDER)
    assert not fits_all(["value.total=12"])(ORDER._replace(value=None))


@pytest.mark.parametrize("condition", ["key", "=x", "", "!x=1", "key~[", "~x"])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(BadCondition):
        fits_all([condition])
