"""Pydantic models as values: where the package is installed, for ours does not need it."""

import subprocess
import sys
from typing import Any

import pytest

from magnetar.client.codecs.codec import codec_of
from magnetar.client.codecs.declared import Avro
from tests.unit.magnetar.client.test_codecs import Color, Line, codec, definition

pydantic = pytest.importorskip("pydantic", reason="the package is not ours")


class Model(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # it may not be there
    id: int
    name: str | None = None
    tags: list[str] = pydantic.Field([])
    color: Color = Color.RED
    line: Line | None = None
    renamed: int = pydantic.Field(0, alias="other")


MODEL = Model(id=1, tags=["x"], line=Line("a"), other=5)
DEFINITION = {
    "type": "record",
    "name": "Noted",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


class Noted(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    id: int
    note: str | None = None


@pytest.mark.parametrize(
    ("declared", "value"), [(Model, MODEL), (Avro(Model), MODEL), (Avro(DEFINITION, Noted), Noted(id=1, note="n"))]
)
def test_a_value_comes_back_as_it_was(declared: Any, value: Any) -> None:
    made = codec(declared)
    assert made.read(made.write(value), None) == value


def test_the_definition_of_a_model() -> None:
    fields = {one["name"]: one for one in definition(Model)["fields"]}
    assert fields["id"] == {"name": "id", "type": "long"}
    assert fields["name"] == {"name": "name", "type": ["null", "string"], "default": None}
    assert fields["tags"]["default"] == []
    assert fields["color"]["type"] == {"type": "enum", "name": "Color", "symbols": ["r", "b"]}
    assert fields["line"]["type"][1]["name"] == "Line"
    assert fields["other"] == {"name": "other", "type": "long", "default": 0}


@pytest.mark.parametrize(
    ("declared", "value", "kind", "words"),
    [
        (Model, Model.model_construct(id="x"), ValueError, "Model is not what the model says: .*int.*id"),
        (Model, Model.model_construct(), ValueError, r"^Model\.id: Field required$"),
        (Model, {"id": 1}, TypeError, "value is dict; it takes Model"),
        (Avro(Model), {"id": 1}, TypeError, "value is dict; it takes Model"),
        (Avro(DEFINITION, Noted), Noted.model_construct(), ValueError, "id"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(declared: Any, value: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        codec(declared).write(value)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"{}", r"Model\.id: Field required"), (b"[", "Expecting"), (b'{"id":"x"}', r"Model\.id: Input")],
)
def test_what_is_no_model_is_a_value_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        codec(Model).read(data, None)


@pytest.mark.parametrize(
    ("field", "words"), [(int | str, r"Plain\.a is a union of several types"), (Any, r"Plain\.a has no type in Avro")]
)
def test_a_model_that_cannot_be_declared_is_refused_at_once(field: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        codec_of(pydantic.create_model("Plain", a=(field, ...)))


def test_a_client_does_not_load_the_package() -> None:
    program = "import magnetar, sys; magnetar.Client, magnetar.Avro; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
