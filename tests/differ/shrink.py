"""Makes a program that shows a difference as short as it goes. Pure: who calls it runs the programs.

1. What comes behind the event that differs is left out.
2. Parts are left out, larger ones first, as long as the rest still differs; then options, one by one.
3. It ends when nothing more can be left out, or when the budget of tries is used up.
"""

from collections.abc import Callable, Iterator

from tests.differ.events import Program

# Without them an event has no meaning.
_NEEDED = frozenset(
    (
        "topic",
        "subscription",
        "kind",
        "count",
        "first",
        "policy",
        "value",
        "pick",
        "to",
        "partitions",
        "start",
        "name",
        "definition",
    )
)


def shrunk(program: Program, differs: Callable[[Program], bool], tries: int = 60) -> Program:
    """The shortest program found that *differs*. *program* does; it is not tried again."""
    left = tries

    def still(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        return differs(candidate)

    size = max(len(program) // 2, 1)
    while left > 0:
        before = program
        for start in range(len(program) - size, -1, -size):
            candidate = program[:start] + program[start + size :]
            if left > 0 and candidate and still(candidate):
                program = candidate
        if size > 1:
            size //= 2
        elif program == before:
            break
    while left > 0:
        for candidate in _with_less_given(program):
            if left > 0 and still(candidate):
                program = candidate
                break
        else:
            break
    return program


def _with_less_given(program: Program) -> Iterator[Program]:
    for at, one in enumerate(program):
        for name, _ in one.given:
            if name not in _NEEDED:
                less = one._replace(given=tuple(pair for pair in one.given if pair[0] != name))
                yield (*program[:at], less, *program[at + 1 :])
