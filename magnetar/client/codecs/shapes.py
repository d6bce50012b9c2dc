"""Dataclasses: their definition in Avro, and the way from an instance to what JSON or Avro write, and back. No IO.

    Python                               Avro                            in JSON
    bool, int, float, str                boolean, long, double, string   the same
    bytes                                bytes                           text in base64
    X | None                             a union of null and X           null, or X; if it is missing, None
    list[X], tuple[X, ...], Sequence[X]  array                           a list
    dict[str, X], Mapping[str, X]        map                             an object
    a dataclass                          record                          an object
    an Enum, Literal["a", "b"]           enum by names; string           the text
    datetime, date                       long timestamp-micros, int date the number
    UUID                                 string uuid                     the text
    Annotated[X, Avro(…)]                what stands there               as X

Rules:

1. A class is looked through once, when it is declared; what has no type in Avro is refused then.
2. Every field is checked on the way out and on the way in. An error names the place: `Order.lines[3].price`.
3. What is read may have members that the class has not, and may lack those that have a default, or take None: it was
   written by another version.
"""

import base64
import binascii
import dataclasses
import enum
import re
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from magnetar.client.codecs.declared import Avro

INT32: Final = 2**31
INT64: Final = 2**63

_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_MISSING: Final = object()


class Misfit(Exception):
    """A value is not what its class says; *kind* is the error that the program gets."""

    def __init__(self, text: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(text)
        self.place = ""
        self.text = text
        self.kind = kind

    def at(self, place: str) -> "Misfit":
        """This, as it is further out."""
        self.place = place + self.place
        return self

    def error(self, name: str) -> Exception:
        return self.kind(f"{name}{self.place} {self.text}")


def misfit(value: object, taken: str) -> Misfit:
    return Misfit(f"is {type(value).__name__}; it takes {taken}", TypeError)


Step = Callable[[Any], Any]
"""Raises Misfit."""


class Shape(NamedTuple):
    """One type: its definition, and how a value is written and read."""

    avro: Any
    write: Step
    read: Step
    takes_none: bool = False


class Shapes:
    """The types that one class leads to."""

    def __init__(self, *, is_json: bool, is_strict: bool = True) -> None:
        """*is_strict*: each type needs one of Avro; otherwise the definition is somebody else's, and an encoder checks
        what is not known here."""
        self._is_json = is_json
        self._is_strict = is_strict
        self._records: dict[type, _Record] = {}
        self._names: dict[str, type] = {}
        self._enums = set[type]()

    def record(self, kind: type) -> Shape:
        """Raises TypeError, ValueError naming the field that cannot be."""
        try:
            return self._dataclass(kind)
        except Misfit as error:
            raise error.error(kind.__name__) from None

    def _dataclass(self, kind: type) -> Shape:
        known = self._records.get(kind)
        if known is not None:  # the second time by its name
            return Shape(kind.__name__, known.write, known.read)
        self._take_name(kind)
        record = self._records[kind] = _Record(kind)
        try:
            hints = get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise Misfit(f"has a type that is not known where the class is defined: {error}", TypeError) from None
        fields = []
        for field in dataclasses.fields(kind):
            if not field.init:
                continue
            try:
                if self._is_strict and not _AVRO_NAME.fullmatch(field.name):
                    raise Misfit("is a name that Avro does not allow: use letters, digits and _")
                shape = self.of(hints[field.name])
                fields.append(self._field(record, field, shape))
            except Misfit as error:
                raise error.at(f".{field.name}") from None
        return Shape({"type": "record", "name": kind.__name__, "fields": fields}, record.write, record.read)

    def _take_name(self, kind: type) -> None:
        if self._names.setdefault(kind.__name__, kind) is not kind:
            raise Misfit(f"leads to two types named {kind.__name__}; Avro needs different names")

    def _field(self, record: "_Record", field: "dataclasses.Field[Any]", shape: Shape) -> dict[str, Any]:
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        record.fields.append(_Field(field.name, shape, has_default))
        definition = {"name": field.name, "type": shape.avro}
        default: Any = _MISSING
        if field.default is not dataclasses.MISSING:
            default = shape.write(field.default)
        elif field.default_factory in (list, dict, tuple):  # others may give something new each time
            default = shape.write(field.default_factory())
        if default is _MISSING:
            return definition
        if isinstance(shape.avro, list) and default is not None:  # a default is of the first type of a union
            definition["type"] = [branch for branch in shape.avro if branch != "null"] + ["null"]
        return {**definition, "default": default}

    # -------------------------------------------------------------------------------- types

    def of(self, kind: Any) -> Shape:
        """Raises Misfit."""
        if isinstance(kind, NewType):
            return self.of(kind.__supertype__)
        known = _PLAIN.get(kind) if isinstance(kind, type) else _NOTHING if kind is None else None
        if known is not None:
            return known if self._is_strict or kind not in _CONVERTED else known._replace(write=_instance_step(kind))
        if kind is bytes:
            return _BASE64 if self._is_json else _BYTES
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated_shape(arguments)
        if origin is Union or origin is types.UnionType:
            return self._union(arguments)
        if origin is Literal:
            return self._literal_shape(arguments)
        if origin in (list, Sequence) or (origin is tuple and len(arguments) == 2 and arguments[1] is ...):
            return self._array(arguments[0], tuple if origin is tuple else list)
        if origin in (dict, Mapping):
            return self._map(*arguments)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._enum(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if self._is_strict:
            name = getattr(kind, "__name__", repr(kind))
            raise Misfit(
                f"is {name}, which has no type in Avro; take another type, Annotated[…, magnetar.Avro(…)], or a "
                "pydantic model",
                TypeError,
            )
        return Shape(None, lambda value: value, lambda value: value)

    def _annotated_shape(self, arguments: tuple[Any, ...]) -> Shape:
        definition = next((argument.definition for argument in arguments[1:] if isinstance(argument, Avro)), None)
        if definition is None:
            return self.of(arguments[0])
        if not self._is_json:  # the encoder of Avro converts by the definition
            return Shapes(is_json=False, is_strict=False).of(arguments[0])._replace(avro=definition)
        shape = self.of(arguments[0])
        if shape is _LONG and definition == "int":
            shape = _INT
        elif shape is _PLAIN[datetime] and _is_millis(definition):
            shape = _MILLIS
        return shape._replace(avro=definition)

    def _union(self, arguments: tuple[Any, ...]) -> Shape:
        others = [argument for argument in arguments if argument not in (None, types.NoneType)]
        if len(others) == len(arguments) or len(others) != 1:
            if not self._is_strict:
                return Shape(None, lambda value: value, lambda value: value)
            raise Misfit("is a union of several types, of which a reader could not know which it has", TypeError)
        inner = self.of(others[0])

        def write(value: Any) -> Any:
            return None if value is None else inner.write(value)

        def read(value: Any) -> Any:
            return None if value is None else inner.read(value)

        return Shape(["null", inner.avro], write, read, takes_none=True)

    def _literal_shape(self, arguments: tuple[Any, ...]) -> Shape:
        if not all(isinstance(argument, str) for argument in arguments):
            raise Misfit("is a Literal of other values than str", TypeError)
        shown = ", ".join(map(repr, arguments))

        def check(value: Any) -> Any:
            if value not in arguments:
                raise Misfit(f"is {value!r}; it takes one of {shown}")
            return value

        return Shape("string", check, check)

    def _array(self, kind: Any, container: Callable[[list[Any]], Any]) -> Shape:
        inner = self.of(kind)

        def each(step: Step, values: Any) -> list[Any]:
            if not isinstance(values, list | tuple):
                raise misfit(values, "a list")
            results: list[Any] = []
            try:
                for value in values:
                    results.append(step(value))
            except Misfit as error:
                raise error.at(f"[{len(results)}]") from None
            return results

        return Shape(
            {"type": "array", "items": inner.avro},
            lambda values: each(inner.write, values),
            lambda values: container(each(inner.read, values)),
        )

    def _map(self, key: Any, kind: Any) -> Shape:
        if key is not str:
            raise Misfit("is a dict with other keys than str", TypeError)
        inner = self.of(kind)

        def each(step: Step, values: Any) -> dict[str, Any]:
            if not isinstance(values, Mapping):
                raise misfit(values, "a dict")
            results: dict[str, Any] = {}
            for name, value in values.items():
                if not isinstance(name, str):
                    raise Misfit(f"has the key {name!r}; it takes keys of str", TypeError)
                try:
                    results[name] = step(value)
                except Misfit as error:
                    raise error.at(f"[{name!r}]") from None
            return results

        return Shape(
            {"type": "map", "values": inner.avro},
            lambda values: each(inner.write, values),
            lambda values: each(inner.read, values),
        )

    def _enum(self, kind: type[enum.Enum]) -> Shape:
        self._take_name(kind)
        names = list(kind.__members__)
        if self._is_strict and not all(_AVRO_NAME.fullmatch(name) for name in names):
            raise Misfit("is an enum with names that Avro does not allow: use letters, digits and _")
        shown = ", ".join(names)

        def write(value: Any) -> str:
            if not isinstance(value, kind):
                raise misfit(value, kind.__name__)
            return value.name

        def read(value: Any) -> enum.Enum:
            if not isinstance(value, str) or value not in kind.__members__:
                raise Misfit(f"is {value!r}; it takes one of {shown}")
            return kind[value]

        definition = {"type": "enum", "name": kind.__name__, "symbols": names}
        shape = Shape(definition, write, read)
        if kind in self._enums:
            return shape._replace(avro=kind.__name__)
        self._enums.add(kind)
        return shape


class _Field(NamedTuple):
    name: str
    shape: Shape
    has_default: bool


class _Record:
    """The fields of a dataclass."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.fields: list[_Field] = []

    def write(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, self._kind):
            raise misfit(value, self._kind.__name__)
        plain = {}
        for name, shape, _ in self.fields:
            try:
                plain[name] = shape.write(getattr(value, name))
            except Misfit as error:
                raise error.at(f".{name}") from None
            except AttributeError:
                raise Misfit("is missing").at(f".{name}") from None
        return plain

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise misfit(plain, "a record")
        values = {}
        for name, shape, has_default in self.fields:
            value = plain.get(name, _MISSING)
            if value is _MISSING:
                if has_default:
                    continue
                if not shape.takes_none:
                    raise Misfit("is missing").at(f".{name}")
                value = None
            try:
                values[name] = shape.read(value)
            except Misfit as error:
                raise error.at(f".{name}") from None
        try:
            return self._kind(**values)
        except (TypeError, ValueError) as error:  # checks of its own
            raise Misfit(f"is refused by the class: {error}") from error


# -------------------------------------------------------------------------------- plain types


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise misfit(value, "bool")
    return value


def _integer_step(limit: int) -> Step:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise misfit(value, "int")
        if not -limit <= value < limit:
            raise Misfit(f"is {value}; it takes {-limit} to {limit - 1}")
        return value

    return check


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise misfit(value, "float")
    try:
        return float(value)
    except OverflowError:
        raise Misfit("is larger than a float may be") from None


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise misfit(value, "str")
    return value


def _check_none(value: Any) -> None:
    if value is not None:
        raise misfit(value, "None")


def _data(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise misfit(value, "bytes")
    return value


def _base64(value: Any) -> str:
    return base64.b64encode(_data(value)).decode("ascii")


def _of_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_check_text(value), validate=True)
    except binascii.Error as error:
        raise Misfit(f"is not base64: {error}") from None


def _micros(value: Any) -> int:
    if not isinstance(value, datetime):
        raise misfit(value, "datetime")
    if value.tzinfo is None:
        raise Misfit("is a datetime without a time zone; give it one: datetime.now(UTC)")
    return (value - _EPOCH) // _MICROSECOND


def _of_micros(value: Any) -> datetime:
    if isinstance(value, datetime):  # the decoder of Avro has made it
        return value
    try:
        return _EPOCH + timedelta(microseconds=_long(value))
    except OverflowError:
        raise Misfit(f"is {value} µs since 1970, which is no datetime") from None


def _is_millis(definition: Any) -> bool:
    return isinstance(definition, dict) and str(definition.get("logicalType")).endswith("timestamp-millis")


def _of_millis(value: Any) -> datetime:
    return _of_micros(_long(value) * 1000)


def _instance_step(kind: type) -> Step:
    """A value that the encoder of Avro converts."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise misfit(value, kind.__name__)
        return value

    return check


def _days_since_epoch(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise misfit(value, "date")
    return (value - _FIRST_DAY).days


def _of_days(value: Any) -> date:
    if isinstance(value, date):
        return value
    try:
        return _FIRST_DAY + timedelta(days=_long(value))
    except OverflowError:
        raise Misfit(f"is {value} days since 1970, which is no date") from None


def _uuid(value: Any) -> str:
    if not isinstance(value, UUID):
        raise misfit(value, "UUID")
    return str(value)


def _of_uuid(value: Any) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(_check_text(value))
    except ValueError:
        raise Misfit(f"is {value!r}, which is no UUID") from None


_long: Final = _integer_step(INT64)
_LONG: Final = Shape("long", _long, _long)
_INT: Final = Shape("int", _integer_step(INT32), _integer_step(INT32))
_BYTES: Final = Shape("bytes", _data, _data)
_BASE64: Final = Shape("bytes", _base64, _of_base64)
_NOTHING: Final = Shape("null", _check_none, _check_none, takes_none=True)

_MILLIS: Final = Shape("", lambda value: _micros(value) // 1000, _of_millis)
_CONVERTED: Final = (datetime, date, UUID)

_PLAIN: Final[dict[type, Shape]] = {
    bool: Shape("boolean", _boolean, _boolean),
    int: _LONG,
    float: Shape("double", _number, _number),
    str: Shape("string", _check_text, _check_text),
    types.NoneType: _NOTHING,
    datetime: Shape({"type": "long", "logicalType": "timestamp-micros"}, _micros, _of_micros),
    date: Shape({"type": "int", "logicalType": "date"}, _days_since_epoch, _of_days),
    UUID: Shape({"type": "string", "logicalType": "uuid"}, _uuid, _of_uuid),
}
