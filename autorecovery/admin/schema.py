"""Schemas of JSON: short ways to write them, and the check of a body against one by `jsonschema`. No IO.

A schema with a `title` becomes a component of the document under that name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator, TypeChecker, validators

from autorecovery.admin.calls import JsonSchema

STRING: Final[JsonSchema] = {"type": "string"}
INTEGER: Final[JsonSchema] = {"type": "integer"}
BOOLEAN: Final[JsonSchema] = {"type": "boolean"}

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


def problem_of(schema: JsonSchema, body: Any) -> str | None:
    """What is wrong with *body*, as text that names the place; None: nothing is."""
    error = next(_Validator(schema).iter_errors(body), None)
    if error is None:
        return None
    place = error.json_path.removeprefix("$").removeprefix(".") or "the body"
    value, wanted = error.instance, error.validator_value
    match error.validator:
        case "type":
            return (
                f"{place} is {_value_text(value)}; it must be {_names([wanted] if isinstance(wanted, str) else wanted)}"
            )
        case "enum":
            return f"{place} is {_value_text(value)}; it must be one of {', '.join(map(str, wanted))}"
        case "required":
            return f"{place} lacks {next(name for name in wanted if name not in value)!r}"
        case "additionalProperties":
            known = error.schema["properties"]
            stray = next(name for name in value if name not in known)
            return f"{place} has {_value_text(stray)}, which is not known; known are: {', '.join(known) or 'none'}"
        case word:  # "'abcd' is too long (maxLength: 3)"
            return f"{place}: {_shown_text(error.message)} ({word}: {wanted})"


def _names(wanted: Sequence[str]) -> str:
    return " or ".join(f"an {name}" if name[0] in "aio" else name if name == "null" else f"a {name}" for name in wanted)


def _value_text(value: Any) -> str:
    return _shown_text(repr(value))


def _shown_text(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… {text[-_SHOWN_CHARS:]}"


def _is_integer(_: TypeChecker, value: object) -> bool:
    """Without 1.0, which JSON Schema takes, and code that expects an int does not."""
    return isinstance(value, int) and not isinstance(value, bool)


_Validator: Final = validators.extend(
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
)
