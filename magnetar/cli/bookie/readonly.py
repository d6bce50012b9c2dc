"""`magnetar bookie readonly`."""

from typing import Any, Final

import click

from magnetar.cli.bookie.asking import if_there, remote
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin

# What ends each reason for being read-only.
_ENDS: Final = {
    "disk": "ends by itself when there is room: `magnetar bookie gc run`, less retention, a larger disk",
    "operator": "ends with `magnetar bookie readonly off`",
    "draining": "ends with `magnetar bookies cancel`, before it is drained or afterwards",
    "error": "ends by itself when the directory can be read again; see the log of the bookie",
    "forced": "ends when the bookie is started without forceReadOnlyBookie",
    "metadata": "ends when newer metadata are put back, or after `magnetar bookie gc forget-doubt`",
}


@click.command()
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@click.option("--detail", default="", help="A short explanation, which others can see.")
@remote
def readonly(admin: BookieAdmin, switch: str | None, detail: str, as_json: bool) -> None:
    """Make the bookie read-only (on) or writable (off). This survives restarts. Without SWITCH: show the state.

    Other reasons are not touched; the remaining ones are shown, each with what ends it. `magnetar bookies drain` takes
    a bookie out of the cluster.

    Example:  magnetar bookie readonly on --detail maintenance
    """
    if switch is not None:
        body: dict[str, Any] = {"readOnly": switch == "on"}
        if detail:  # left out otherwise: then Apache's bookie understands the request, too
            body["detail"] = detail
        state = admin.put("bookie/state/readonly", body)
    else:
        state = admin.get("bookie/state/readonly")
    held = _reasons(admin) if state["readOnly"] else {}
    if as_json:
        print_json({**state, "reasons": held})
        return
    click.echo("read-only" if state["readOnly"] else "writable")
    for reason, text in held.items():
        click.echo(f"  {reason}{f' ({text})' if text else ''}: {_ENDS.get(reason, 'see the log of the bookie')}")


def _reasons(admin: BookieAdmin) -> Any:
    """Why the bookie is read-only. Apache's bookie does not report that."""
    status = if_there(admin, "magnetar/status")
    return {} if status is None else status["state"]["reasons"]
