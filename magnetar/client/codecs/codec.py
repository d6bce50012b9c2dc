"""From what a program declares to bytes and a schema: one codec for each producer and consumer. No IO.

    value=           payload                    schema at the broker
    bytes            as it is                   none, or `schema=`
    str              UTF-8                      STRING
    Json             JSON                       none
    a dataclass      JSON, an object            JSON, a record of Avro
    a pydantic model JSON, as the model says    JSON, a record of Avro
    Avro(…)          Avro's binary form         AVRO

JSON is read by what the reader declares. Avro is read by the schema of whoever wrote it, which the version that the
message names stands for (`versions`).
"""

import dataclasses
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple

from magnetar.client.base.arguments import wrong
from magnetar.client.codecs import avro
from magnetar.client.codecs.declared import Avro, Declared, Json, Schema, T
from magnetar.client.codecs.models import definition_of, is_model
from magnetar.client.codecs.shapes import Misfit, Shape, Shapes
from magnetar_core.runtime.data.json_text import NESTING_MAX, parse_json

_TAKEN: Final = (
    "bytes, str, magnetar.Json, a dataclass, a pydantic model, or magnetar.Avro(…); a schema by itself is schema="
)


class Codec(NamedTuple, Generic[T]):
    """How the values of one declaration are written and read."""

    declared: Any
    """What the program gave, of which this is made again after a pickle."""
    name: str
    """What a value is, for texts."""
    schema: Schema | None
    write: Callable[[Any], bytes]
    """Raises TypeError, ValueError naming the field."""
    read: Callable[[bytes, "avro.Parsed | None"], Any]
    """*writer*: the schema by which it was written, if that is not this one. Raises ValueError."""
    reader: avro.Parsed | None = None
    """For Avro: bytes are read by the schema of their writer."""

    def writer(self, definition: bytes) -> avro.Parsed:
        """A schema by which others have written. Raises ValueError."""
        assert self.reader is not None, "only Avro has writers"
        return avro.parse_writer(definition, self.reader)


def codec_of(declared: Any) -> "Codec[Any] | None":
    """The codec; None for bytes. Raises TypeError, ValueError for what cannot be declared."""
    if declared is bytes:
        return None
    if not isinstance(declared, type | Declared):
        raise wrong("value", declared, _TAKEN)
    return _made(declared) if isinstance(declared, type) else _codec_of(declared)


@lru_cache(maxsize=1_000)  # classes are declared again and again: `client.producer(t, value=Order)` in each request
def _made(declared: Any) -> "Codec[Any]":
    return _codec_of(declared)


def _codec_of(declared: Any) -> "Codec[Any]":
    if declared is str:
        return Codec(declared, "str", Schema("string"), _write_text, lambda data, _: data.decode())
    if declared is Json:
        return Codec(declared, "JSON", None, _write_json, lambda data, _: parse_json(data))
    if isinstance(declared, Avro):
        return _avro(declared)
    if is_model(declared):
        return _model_codec(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return _dataclass(declared)
    name = declared.__name__ if isinstance(declared, type) else repr(declared)
    raise TypeError(f"value is {name}; it takes {_TAKEN}")


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _write_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise wrong("value", value, "str")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError("value has a character that is none: it cannot be written as UTF-8") from None


def _write_json(value: Any) -> bytes:
    _check_json(value)
    return _text_of(value, "value")


def _check_json(value: Any, place: str = "value", level: int = 0) -> None:
    """The encoder would write keys that are numbers as text, and what nobody reads. Raises TypeError naming the place,
    ValueError."""
    if isinstance(value, dict | list | tuple) and level >= NESTING_MAX:
        raise ValueError(f"value nests deeper than {NESTING_MAX} levels, or contains itself")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{place} has the key {key!r}; JSON takes str")
            _check_json(item, f"{place}[{key!r}]", level + 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_json(item, f"{place}[{number}]", level + 1)
    elif not isinstance(value, str | int | float | bool | None):
        raise wrong(place, value, "what JSON can be")


def _text_of(plain: Any, name: str) -> bytes:
    """Raises ValueError."""
    try:
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has a character that is none: it cannot be written as UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{name} is nothing that JSON can be: {error}") from None


def _text_of_definition(definition: Any) -> bytes:
    return json.dumps(definition, default=lambda data: data.decode("latin-1")).encode()


def _dataclass(kind: type) -> "Codec[Any]":
    shape = Shapes(is_json=True).record(kind)
    name = kind.__name__

    def write(value: Any) -> bytes:
        return _text_of(_converted(shape.write, value, name), name)

    def read(data: bytes, _: Any) -> Any:
        return _read(shape, parse_json(data), name)

    return Codec(kind, name, Schema("json", _text_of_definition(shape.avro)), write, read)


def _converted(step: Callable[[Any], Any], value: Any, name: str) -> Any:
    """Raises TypeError, ValueError."""
    try:
        return step(value)
    except Misfit as error:
        raise error.error(name if error.place else "value") from None
    except RecursionError:
        raise ValueError(f"{name} contains itself, or nests too deep") from None


def _read(shape: Shape, plain: Any, name: str) -> Any:
    """Raises ValueError."""
    try:
        return shape.read(plain)
    except Misfit as error:
        raise ValueError(str(error.error(name))) from error.__cause__


def _model_codec(kind: Any) -> "Codec[Any]":
    name = kind.__name__

    def write(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise wrong("value", value, name)
        try:
            text: str = value.model_dump_json(by_alias=True, warnings="error")
            kind.model_validate_json(text)  # what is sent can be read: an instance may be changed after its checks
        except ValueError as error:
            raise _refusal(name, error) from None
        return text.encode()

    def read(data: bytes, _: Any) -> Any:
        parse_json(data)  # its limits
        try:
            return kind.model_validate_json(data)
        except ValueError as error:
            raise _refusal(name, error) from None

    return Codec(kind, name, Schema("json", _text_of_definition(definition_of(kind))), write, read)


def _refusal(name: str, error: ValueError) -> ValueError:
    """The error of a model, with the places of what is wrong and without pages of text."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        return ValueError("; ".join(".".join([name, *map(str, item["loc"])]) + f": {item['msg']}" for item in errors()))
    lines = str(error).splitlines()
    return ValueError(f"{name} is not what the model says: {' '.join(line.strip() for line in lines[-2:])}")


def _avro(declared: Any) -> "Codec[Any]":
    record: Any = declared.record
    definition = declared.definition
    to_plain: Callable[[Any], Any] = lambda value: value  # noqa: E731
    of_plain: Callable[[Any], Any] = to_plain
    name = "Avro"
    if is_model(record):
        name, mode = record.__name__, "python" if definition else "json"
        definition = definition or definition_of(record)

        def to_plain(value: Any) -> Any:
            if not isinstance(value, record):
                raise wrong("value", value, name)
            try:
                return value.model_dump(by_alias=True, mode=mode, warnings="error")
            except ValueError as error:
                raise _refusal(name, error) from None

        def of_plain(plain: Any) -> Any:
            try:
                return record.model_validate(plain)
            except ValueError as error:
                raise _refusal(name, error) from None

    elif record is not None:
        if not _is_dataclass(record):
            raise wrong("record of an Avro", record, "a dataclass or a pydantic model")
        name = record.__name__
        shape = Shapes(is_json=False, is_strict=not definition).record(record)
        definition = definition or shape.avro

        def to_plain(value: Any) -> Any:
            return _converted(shape.write, value, name)

        def of_plain(plain: Any) -> Any:
            return _read(shape, plain, name)

    text = _text_of_definition(definition)
    reader = avro.parse_text(text)
    name = name if record is not None else reader.name

    def write(value: Any) -> bytes:
        plain = to_plain(value)
        try:
            return avro.encode(plain, reader)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} {error}") from None

    def read(data: bytes, writer: avro.Parsed | None) -> Any:
        return of_plain(avro.decode(data, writer or reader, reader))

    return Codec(declared, name, Schema("avro", text), write, read, reader)


def shown_value(codec: Codec[Any] | None) -> str:
    """What the values are, as the `repr` of a producer or consumer says it."""
    return "" if codec is None else f", value={codec.name}"


class Unpickled:
    """Reads the value of one message that came out of a pickle: as `versions.Decoder`, without brokers."""

    def __init__(self, declared: Any, writer: bytes, problem: str) -> None:
        """*writer*: the definition by which it was written; empty: the reader's. *problem*: why it is not there."""
        codec = codec_of(declared)
        assert codec is not None, "bytes need no decoder"
        self.codec: Final = codec
        self._writer = writer
        self._problem = problem

    def value(self, topic: str, payload: bytes, version: bytes) -> Any:
        """Raises ValueError."""
        if self._problem:
            raise ValueError(self._problem)
        return self.codec.read(payload, self.codec.writer(self._writer) if self._writer else None)

    def pickled(self, topic: str, version: bytes) -> tuple[bytes, str]:
        return self._writer, self._problem
