"""Calls of the admin API in their order, as Apache's broker answered them (`record_rest`)."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from tests.golden.record_rest import masked
from tests.support.golden import REPLAYS, Report, golden, load
from tests.unit.broker.admin.admin_world import AdminWorld


def same(ours: str, apache: str) -> bool:
    """Equal texts, or equal JSON; lists of names may come in another order (Apache's is that of a hash table)."""
    try:
        return bool(ordered(json.loads(ours)) == ordered(json.loads(apache)))
    except ValueError:
        return ours == apache


def ordered(value: Any) -> Any:
    is_names = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return sorted(value) if is_names else value


@golden(
    "rest/*.json",
    how={REPLAYS},
    compared="the status and the whole body of each answer, but for addresses; of refusals the status, and that there "
    "is a reason",
)
def test_calls_are_answered_as_apache_answers_them(report: Report) -> None:
    async def replay() -> None:
        async with AsyncExitStack() as stack:
            made = AdminWorld(stack)
            await made.open()
            side = await made.side(cluster_name="standalone")
            for number, row in enumerate(load(report.vector)):
                found = await made.call(side, row["method"], row["path"].replace("BROKER", side.id), row["body"])
                name = f"{number} {row['method']} {row['path']}"
                with report.row(name):
                    assert found.status == row["status"], f"{found.text[:300]}, Apache: {row['answer'][:300]}"
                    if found.status >= 400:
                        assert found.reason
                    else:
                        text = masked(found.text, side.id)
                        assert same(text, row["answer"]), f"{text[:1500]}, Apache: {row['answer'][:1500]}"

    asyncio.run(replay())
