"""Of the metadata stores."""

from tests.mutants.history.mended import Mended, catalogued

MENDED = (
    Mended(
        "bb9de76f",
        "A change that was decided in one session was sent in the next one.",
        catalogued("a change decided under one session is sent under the next"),
    ),
    Mended(
        "bb9de76f",
        "A change was sent although its caller had given up.",
        catalogued("a change is sent although its caller was cancelled"),
    ),
)
