"""Runs a notebook of the documentation from its first cell to its last, beside the standalone that it asks for.

`python -m tests.support.notebook NOTEBOOK FOLDER [--save]`: prints what the cells say, `[image/png]` for a plot; saves
the notebook with its results if asked to. Raises at the first cell that fails.
"""

import argparse
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.support.pages import Block, Newcomer

CELL_TIMEOUT_S = 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    notebook = nbformat.read(asked.notebook, as_version=4)  # type: ignore[no-untyped-call]
    newcomer = Newcomer(asked.folder)
    # Matplotlib has its list of fonts at home, and would make it anew.
    environment = {**newcomer.environment, "HOME": os.environ.get("HOME", str(asked.folder))}
    try:
        newcomer.follow(Block("", "", "", "magnetar standalone"))
        NotebookClient(
            notebook, timeout=CELL_TIMEOUT_S, record_timing=False, resources={"metadata": {"path": str(asked.folder)}}
        ).execute(env=environment)
    finally:
        newcomer.clean()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            print(output.get("text", ""), *(f"[{kind}]" for kind in output.get("data", {})))
            print(output.get("data", {}).get("text/plain", ""))
    if asked.save:
        for cell in notebook.cells:
            cell.get("outputs", [])[:] = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
        nbformat.write(notebook, asked.notebook)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
