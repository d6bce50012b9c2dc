"""Seeded bugs of what hostile clients have found at running servers (`tests/abuse`)."""

from typing import Final

from tests.mutants.catalogue import Mutant

MUTANTS: Final = (
    Mutant(
        "an event without a schema keeps the policies of a namespace from being read",
        "broker/schemas.py",
        "            if has_been_used() and not topic.is_system:\n",
        "            if has_been_used():\n",
        ("tests/unit/broker/topic_policies/test_service.py", "-k", "without_a_schema"),
    ),
    Mutant(
        "a redirect leads to a path in which dots were taken out",
        "broker/admin/owners.py",
        '    found.headers["Location"] = url\n',
        "",
        ("tests/unit/broker/admin/test_deputies.py", "-k", "same_path"),
    ),
    Mutant(
        "a property that is no text is taken for one, where there are several",
        "broker/wire/frames.py",
        "    return all(bytes not in set(map(type, map(attrgetter(field.name), messages))) for field, _ in fields)\n",
        "    return True\n",
        ("tests/unit/broker/wire/test_frames.py", "-k", "not_utf8"),
    ),
)
