"""The table of docs/permissions.md: each action, at each of its doors, by each role, at a running server."""

from pathlib import Path
from typing import Final

import pytest

from tests.abuse.actions import ACTIONS, Outcome
from tests.abuse.roles import ROLES, Doors
from tests.abuse.world import Server, Victim

pytestmark = [pytest.mark.process]

PAGE: Final = Path(__file__).parents[2] / "docs/permissions.md"
COLUMNS: Final = ("nobody", "any other", "`produce`", "`consume`", "administrator", "super user")
YES: Final = "yes"


def rows_of(text: str) -> dict[str, tuple[tuple[str, ...], tuple[bool, ...]]]:
    """Action → its doors, and whether each role may."""
    head = f"| action | at | {' | '.join(COLUMNS)} |\n"
    assert head in text
    found = {}
    for line in text.partition(head)[2].splitlines()[1:]:
        if not line.startswith("|"):
            break
        action, doors, *may = (cell.strip() for cell in line.strip("|").split("|"))
        assert set(may) <= {YES, "–"}, line
        assert len(may) == len(ROLES), line
        found[action] = tuple(doors.split(", ")), tuple(cell == YES for cell in may)
    return found


ROWS: Final = rows_of(PAGE.read_text())


def test_each_action_has_its_row_and_its_doors() -> None:
    assert {action: doors for action, (doors, _) in ROWS.items()} == {
        action: tuple(tries) for action, tries in ACTIONS.items()
    }


async def test_each_role_may_what_the_table_says(
    guarded_server: Server, victim: Victim, doors: tuple[Doors, Doors]
) -> None:
    wrong = []
    for action, tries in ACTIONS.items():
        for door, attempt in tries.items():
            for role, may in zip(ROLES, ROWS[action][1], strict=True):
                told = await attempt(doors, role)
                # What nobody may is refused to super users by its name, and to others for want of the right or so.
                is_nobodys = not any(ROWS[action][1])
                if may != (told.outcome is Outcome.DONE) or not (may or is_nobodys or told.outcome is Outcome.DENIED):
                    wrong.append(f"{action}, {door}, {role}: {told.outcome.name} {told.text[:200]}")
        guarded_server.check(action)
    assert not wrong, "\n".join(wrong)
    await victim.check()
