"""Numbers in settings of servers, and JSON from other programs."""

import dataclasses
import json
import re
import typing
from typing import Any

import pytest

from bookie.config import BookieConfig
from broker.settings.config import BrokerConfig, load_broker_config
from magnetar_core.runtime.config import load
from magnetar_core.runtime.data.json_text import DIGITS_MAX, NESTING_MAX, parse_json
from magnetar_core.runtime.types import ConfigurationError

Field = dataclasses.Field[Any]


def numbers_of(kind: type) -> list[tuple[type, Field, bool]]:
    """Each setting that is a number, and whether it may have a fraction."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        kinds = typing.get_args(hint) or (hint,)
        if "name" in field.metadata and (int in kinds or float in kinds):
            found.append((kind, field, float in kinds))
    return found


NUMBERS = [*numbers_of(BrokerConfig), *numbers_of(BookieConfig)]
LEAST = {BookieConfig: {"journalDirectories": "/j", "ledgerDirectories": "/l"}, BrokerConfig: {}}


def refusal(kind: type, name: str, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(kind, {**LEAST[kind], name: text})
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "field", "is_float"), NUMBERS, ids=[field.metadata["name"] for _, field, _ in NUMBERS]
)
def test_a_number_out_of_its_range_is_refused_with_the_range(kind: type, field: Field, is_float: bool) -> None:
    name, least = field.metadata["name"], field.metadata["least"]
    wild = [str(least - 1), "99999999999999999999999"]
    wild += ["nan", "inf", "-inf"] if is_float else []
    for text in wild:
        found = refusal(kind, name, text)
        assert len(re.findall(rf"{name} \(\S+\) must be {least} to [0-9]+", found)) == 1, found
    for text in ["x"] if is_float else ["NaN", "1e3", "x"]:
        assert f"{name}={text}" in refusal(kind, name, text)


def test_a_message_size_that_no_frame_can_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"maxMessageSize \(99999999999\) must be 1024 to 1073741824"):
        load_broker_config({"maxMessageSize": "99999999999"})


def test_json_that_nobody_else_would_read_is_refused() -> None:
    for text in ("NaN", "[Infinity]", '{"a":-Infinity}', "", "{", b"\xff\xfe"):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b'{"a":[1,2.5,null,"x"]}') == {"a": [1, 2.5, None, "x"]}


def test_numbers_in_json_have_a_limit() -> None:
    most = "9" * DIGITS_MAX
    for text in (most, f"[{most}]", f'{{"a":-{most[1:]}}}', "1e308", f'"{most}0"', f'{{"{most}0":1}}'):
        assert parse_json(text) == json.loads(text)
        assert parse_json(text.encode()) == json.loads(text)
    float(parse_json(most))
    for text in (most + "0", f"[1, {most}0]", f'{{"a":-{most}0}}', "9" * 4_000, "9" * 5_000, "1e309", "[-1e999]"):
        for sent in (text, text.encode()):
            with pytest.raises(ValueError):
                parse_json(sent)


def test_json_nests_to_a_limit() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        fine = opening * NESTING_MAX + "1" + closing * NESTING_MAX
        assert parse_json(fine) is not None
        for depth in (NESTING_MAX + 1, 500, 100_000):
            with pytest.raises(ValueError, match="deeper than 100"):
                parse_json(opening * depth + "1" + closing * depth)
    assert parse_json("[" + "[]," * 500 + "[]]") == [[]] * 501
    assert parse_json('"' + "[" * 500 + '"') == "[" * 500
