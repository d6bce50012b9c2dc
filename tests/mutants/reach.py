"""Which lives of clusters come to the place of which mutant.

A statement `reached_place(number)` is put before the one that a mutant changes. A life that never comes there cannot
find the mutant, and need not be lived with it. A place in the body of a module or class is reached by each import.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants.catalogue import Mutant

# Lives the seeds of its arguments; prints "seed digest error numbers", a line for each, numbers of what was reached.
LIVE: Final = """
import builtins, sys
from tests.simulation.stack import __main__ as main, life
reached, digest = set(), life.Life.digest
builtins.reached_place = reached.add
life.Life.digest = lambda self: digest(self) + "".join(f" {number}" for number in sorted(reached))

def show(outcome):
    lived, *numbers = outcome.get("digest", "-").split()
    error = "".join((outcome["error"] or "-").split("\\n")[:1]).replace("\\t", " ")
    print(outcome["seed"], lived, error, " ".join(numbers), sep="\\t", flush=True)

main.run([int(seed) for seed in sys.argv[1:]], jobs=1, until_broken=True, show=show)
"""


def line_of(mutant: Mutant, text: str) -> int:
    """The line of *text*, its file, in which *mutant* begins to differ; from 1."""
    differ = (at for at, (old, new) in enumerate(zip(mutant.old, mutant.new, strict=False)) if old != new)
    same = next(differ, min(len(mutant.old), len(mutant.new)))
    at = text.index(mutant.old) + min(same, len(mutant.old) - 1)
    while text[at].isspace() and at > 0 and same == len(mutant.old):
        at -= 1
    return text.count("\n", 0, at) + 1


def probed(text: str, lines: Mapping[int, int]) -> str:
    """*text* with `reached_place(number)` before the statement of each line; *lines*: number → line."""
    tree = ast.parse(text)
    places = [(*_place(tree.body, line), number) for number, line in lines.items()]
    # The last ones first: what is put in moves what stands behind it.
    for body, at, number in sorted(places, key=lambda place: place[1], reverse=True):
        body.insert(at, ast.parse(f"reached_place({number})").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def _place(body: list[ast.stmt], line: int) -> tuple[list[ast.stmt], int]:
    """The innermost block with *line*, and the index in it before which a statement comes when *line* is reached."""
    for at, statement in enumerate(body):
        if _first_line(statement) <= line <= (statement.end_lineno or 0):
            for inner in _blocks(statement):
                if inner and _first_line(inner[0]) <= line <= (inner[-1].end_lineno or 0):
                    return _place(inner, line)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                return statement.body, 1 if ast.get_docstring(statement) else 0
            return body, at
        if _first_line(statement) > line:
            return body, at
    return body, len(body)


def _first_line(statement: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    inner = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    return [*blocks, *(each.body for each in inner)]
