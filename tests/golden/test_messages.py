"""Calls about messages and backlogs, as Apache's broker answered them (`record_messages`)."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pulsar

from tests.support.golden import REPLAYS, Report, golden, load
from tests.support.message_calls import DEEDS, TOP, Step, same, steps
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side
from tests.unit.broker.test_official_client import QUIET


def shown(answer: Answer, ledger_id: int) -> dict[str, Any]:
    if answer.status >= 400:
        return {"status": answer.status}
    headers = {name: value for name, value in answer.headers.items() if name.lower().startswith("x-pulsar")}
    found: dict[str, Any] = {"status": answer.status, "headers": headers}
    try:
        found["json"] = answer.json
    except ValueError:
        found["text"] = answer.text
    if isinstance(body := found.get("json"), dict):
        assert not body.pop("markerMessages", 0), "4.2.4 began to count them, and none is here"
    same_found: dict[str, Any] = same(found, ledger_id)
    return same_found


async def call(world: AdminWorld, side: Side, step: Step) -> Answer:
    return await world.call(side, step.method, step.path, step.body)


@golden(
    "messages/http.json",
    how={REPLAYS},
    compared="status, the headers X-Pulsar-… in any order, JSON and text; of times, versions and reasons the type, of "
    "ids of ledgers whether it is the topic's",
)
def test_calls_about_messages(report: Report) -> None:
    recorded = iter(load(report.vector))

    async def replay() -> None:
        async with AsyncExitStack() as stack:
            world = AdminWorld(stack)
            await world.open()
            side = await world.side(ensemble_size=1, write_quorum=1, ack_quorum=1)
            client = pulsar.Client(side.url, logger=QUIET)
            stack.push_async_callback(world.run, client.close)
            ledger_id = -1
            for number, step in enumerate(steps(side.broker.config.cluster_name)):
                if not step.method:
                    await world.run(DEEDS[step.path], client)
                    (ledger,) = (await world.call(side, "GET", f"{TOP}/internalStats")).json["ledgers"]
                    ledger_id = ledger["ledgerId"]
                    continue
                row = next(recorded)
                assert (row["method"], row["path"]) == (step.method, step.path)
                ours = shown(await call(world, side, step.with_ledger(ledger_id)), ledger_id)
                with report.row(f"{number} {step.method} {step.path}"):
                    assert ours == row["answer"], json.dumps({"ours": ours, "Apache's": row["answer"]})

    asyncio.run(replay())
