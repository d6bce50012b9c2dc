"""The files of the page, and the paths at which everybody may get them (`magnetar_core/pages/serving`, rule 1)."""

from pathlib import Path
from typing import Final

from magnetar_core.pages.serving import files_of

PREFIX: Final = "/page/"
"""What the page loads and the calls that it makes have this before their names; the page itself is `/`."""

FILES: Final = files_of(Path(__file__).parent / "files")
"""Name → file."""

OPEN_PATHS: Final = frozenset({"/", *(PREFIX + name for name in FILES)})
