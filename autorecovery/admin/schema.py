"""Schemas of JSON: short ways to write them, and the check of a body against one. No IO.

The check knows the words of JSON Schema that the calls use. A schema with another word is a defect that shows at the
start of the server: no word stands in the OpenAPI document that the server does not check.

A schema with a `title` becomes a component of the document under that name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from autorecovery.admin.calls import JsonSchema

STRING: Final[JsonSchema] = {"type": "string"}
INTEGER: Final[JsonSchema] = {"type": "integer"}
BOOLEAN: Final[JsonSchema] = {"type": "boolean"}

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

# Words that only people read: the check passes over them.
_TEXTS: Final = frozenset({"title", "description", "examples"})
_CHECKED: Final = frozenset(
    {
        "type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
        "uniqueItems", "minimum", "maximum", "minLength", "maxLength", "pattern",
    }
)  # fmt: skip

# How much of a wrong value an answer repeats.
_SHOWN_CHARS: Final = 80


def closed(properties: Mapping[str, JsonSchema], *optional: str, title: str = "") -> JsonSchema:
    """An object that has these members, but for *optional* ones, and no others."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
    assert set(optional) <= properties.keys(), optional
    return {"title": title, **schema} if title else schema


def answer_of(properties: Mapping[str, JsonSchema], *optional: str, title: str = "") -> JsonSchema:
    """As `closed`, for what the server sends: a newer version may send more members."""
    return {name: value for name, value in closed(properties, *optional, title=title).items() if name != _ADDITIONAL}


_ADDITIONAL: Final = "additionalProperties"


def array(of: JsonSchema, **limits: Any) -> JsonSchema:
    """An array of *of*; *limits*: minItems, maxItems, uniqueItems."""
    return {"type": "array", "items": of, **limits}


def or_null(schema: JsonSchema) -> JsonSchema:
    """*schema*, which has one type and no enum, or null."""
    assert isinstance(schema["type"], str), schema
    assert "enum" not in schema, schema
    return {**schema, "type": [schema["type"], "null"]}


def one_of(values: Sequence[str], **more: Any) -> JsonSchema:
    """One of some strings."""
    return {"type": "string", "enum": [str(value) for value in values], **more}


def unchecked_words(schema: JsonSchema) -> Iterator[str]:
    """Words of *schema* that `problem_of` does not know."""
    yield from schema.keys() - _TEXTS - _CHECKED
    for name in ("items", _ADDITIONAL):
        if isinstance(schema.get(name), Mapping):
            yield from unchecked_words(schema[name])
    for inner in schema.get("properties", {}).values():
        yield from unchecked_words(inner)


def problem_of(schema: JsonSchema, value: Any, where: str = "") -> str | None:
    """What is wrong with *value*, as text that names the place; None: nothing is."""
    place = where or "the body"
    if "type" in schema:
        wanted = [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])
        if not any(_is_a(value, name) for name in wanted):
            return f"{place} is {_shown(value)}; it must be {_names(wanted)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{place} is {_shown(value)}; it must be one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, dict):
        return _object_problem(schema, value, where)
    if isinstance(value, list):
        return _array_problem(schema, value, place)
    if isinstance(value, str):
        return _string_problem(schema, value, place)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            return f"{place} is {_shown(value)}; it must be " + " and ".join(
                f"{word} {limit}" for word, limit in (("at least", low), ("at most", high)) if limit is not None
            )
    return None


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _names(wanted: Sequence[str]) -> str:
    return " or ".join(f"an {name}" if name[0] in "aio" else name if name == "null" else f"a {name}" for name in wanted)


def _object_problem(schema: JsonSchema, value: dict[str, Any], where: str) -> str | None:
    known: Mapping[str, JsonSchema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where or 'the body'} lacks {name!r}"
    others: Any = schema.get(_ADDITIONAL, True)
    for name, member in value.items():
        inner: Any = known.get(name, others)
        if inner is False:
            names = ", ".join(known) or "none"
            return f"{where or 'the body'} has {_shown(name)}, which is not known; known are: {names}"
        if isinstance(inner, Mapping):
            problem = problem_of(inner, member, f"{where}.{name}" if where else name)
            if problem is not None:
                return problem
    return None


def _array_problem(schema: JsonSchema, value: list[Any], place: str) -> str | None:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < low or (high is not None and len(value) > high):
        return f"{place} has {len(value)} items; it must have at least {low}" + (
            "" if high is None else f" and at most {high}"
        )
    for at, item in enumerate(value):
        if "items" in schema and (problem := problem_of(schema["items"], item, f"{place}[{at}]")) is not None:
            return problem
        if schema.get("uniqueItems") and item in value[:at]:
            return f"{place} has {_shown(item)} twice"
    return None


def _string_problem(schema: JsonSchema, value: str, place: str) -> str | None:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < low or (high is not None and len(value) > high):
        return f"{place} has {len(value)} characters; it must have at least {low}" + (
            "" if high is None else f" and at most {high}"
        )
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return f"{place} is {_shown(value)}; it must match {schema['pattern']}"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
