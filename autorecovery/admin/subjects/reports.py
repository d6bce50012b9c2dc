"""Calls of the management interface about bad ledgers and lost entries: posted by programs, handled by people."""

from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, JsonSchema, Refused
from autorecovery.admin.schema import INTEGER, STRING, answer_of, array, closed, one_of
from magnetar_core.bookkeeper.metadata.damage import rules
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports, NoSuchReport, TooManyReports
from magnetar_core.bookkeeper.metadata.damage.rules import BadReport, Damage, Kind, Source, Stage, WrongStage
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption

SUBJECT: Final = "reports"

_KIND: Final[JsonSchema] = one_of(tuple(Kind))
_RANGES: Final[JsonSchema] = array(
    array({"type": "integer", "minimum": 0}, minItems=2, maxItems=2),
    description="first and last entry of each range",
)

_REPORT: Final = answer_of(
    {
        "id": STRING,
        "ledger_id": INTEGER,
        "kind": _KIND,
        "source": one_of(tuple(Source)),
        "name": {"type": "string", "description": "of the reporter"},
        "text": STRING,
        "ranges": _RANGES,
        "first_ms": INTEGER,
        "last_ms": INTEGER,
        "count": {"type": "integer", "description": "how often it was met"},
        "state": one_of(tuple(Stage)),
        "by": {"type": "string", "description": "who acknowledged or mended it"},
        "note": STRING,
        "changed_ms": INTEGER,
    },
    title="Report",
)

_POSTED: Final = closed(
    {
        "ledger_id": {"type": "integer", "minimum": 0},
        "kind": _KIND,
        "text": {"type": "string", "description": "what was met"},
        "ranges": _RANGES,
    },
    "ranges",
)

_MOVE: Final = closed(
    {
        "state": one_of((Stage.ACKNOWLEDGED, Stage.MENDED)),
        "note": {"type": "string", "description": "what was found or done"},
    },
    "note",
)


class ReportCalls:
    """Posts, lists and closes reports."""

    def __init__(self, reports: DamageReports, clock: Clock) -> None:
        self._reports = reports
        self._clock = clock

    def calls(self) -> list[Call]:
        return [
            Call(
                method="POST", path="/reports", name="postReport", subject=SUBJECT, access=Access.WRITE,
                summary="Report a bad ledger or lost entries. The same again is counted, and opens a mended report.",
                handler=self._post, body=_POSTED, answer=_REPORT,
                refusals={409: "there are as many reports as there may be, none of them mended"},
            ),
            Call(
                method="GET", path="/reports", name="listReports", subject=SUBJECT, access=Access.READ,
                summary="List the reports, by ledger.", handler=self._list,
                query={"state": "open, acknowledged or mended; left out: all", "ledger": "id of a ledger"},
                answer=answer_of({"reports": array(_REPORT)}),
            ),
            Call(
                method="GET", path="/reports/{report}", name="getReport", subject=SUBJECT, access=Access.READ,
                summary="Show one report.", handler=self._get, answer=_REPORT,
                refusals={404: "no report has this id", 409: "it cannot be read"},
            ),
            Call(
                method="PUT", path="/reports/{report}", name="moveReport", subject=SUBJECT, access=Access.WRITE,
                summary="Acknowledge a report, or call it mended.", handler=self._move, body=_MOVE, answer=_REPORT,
                refusals={404: "no report has this id", 409: "it is mended already, or cannot be read"},
            ),
        ]  # fmt: skip

    async def _post(self, checked: CheckedCall) -> Any:
        body = checked.body
        name = checked.caller.name[: rules.NAME_CHARS_MAX]
        try:
            damage = Damage(
                body["ledger_id"], _kind_of(body["kind"]), Source.CLIENT, name, body["text"],
                tuple(map(_range_of, body.get("ranges", ()))),
            )  # fmt: skip
            return rules.facts_of(await self._reports.post(damage, self._clock.wall_ms()))
        except BadReport as error:
            raise Refused(400, str(error)) from error
        except TooManyReports as error:
            raise Refused(409, str(error)) from error

    async def _list(self, checked: CheckedCall) -> Any:
        state, ledger = checked.query.get("state"), checked.query.get("ledger")
        if state is not None and state not in tuple(Stage):
            raise Refused(400, f"there is no state {state[:50]!r} of a report; states are {', '.join(Stage)}")
        if ledger is not None and not (ledger.isascii() and ledger.isdigit()):
            raise Refused(400, f"{ledger[:50]!r} is no id of a ledger")
        reports = [
            rules.facts_of(report)
            for report in await self._reports.all()
            if state in (None, str(report.stage)) and ledger in (None, str(report.ledger_id))
        ]
        return {"reports": reports}

    async def _get(self, checked: CheckedCall) -> Any:
        try:
            return rules.facts_of(await self._reports.read(checked.path["report"]))
        except NoSuchReport as error:
            raise Refused(404, str(error)) from error
        except Corruption as error:
            raise Refused(409, str(error)) from error

    async def _move(self, checked: CheckedCall) -> Any:
        note = checked.body.get("note", "")
        try:
            to = Stage(checked.body["state"])
        except ValueError:
            raise Refused(400, "a report can become acknowledged or mended") from None
        try:
            report = await self._reports.move(
                checked.path["report"], to, checked.caller.name, note, self._clock.wall_ms()
            )
        except NoSuchReport as error:
            raise Refused(404, str(error)) from error
        except (WrongStage, Corruption) as error:
            raise Refused(409, str(error)) from error
        return rules.facts_of(report)


def _kind_of(text: str) -> Kind:
    """Raises BadReport."""
    try:
        return Kind(text)
    except ValueError:
        raise BadReport(f"there is no kind {text[:50]!r} of damage; kinds are {', '.join(Kind)}") from None


def _range_of(value: Any) -> rules.Range:
    """Raises BadReport."""
    match value:
        case [int() as first, int() as last]:
            return first, last
    raise BadReport("a range of entries is a list of two numbers, the first and the last entry")
