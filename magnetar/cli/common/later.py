"""Commands that are imported when they are called: the help of their group names them without their modules."""

import importlib
from collections import UserDict
from collections.abc import Iterable
from typing import Any

import click

from magnetar.cli.common.guesses import Guessing


class Later(click.Command):
    """Stands for the command at *place* (`module:name`). *text* is the first sentence of its help."""

    def __init__(self, name: str, place: str, text: str) -> None:
        super().__init__(name, help=text)
        self._place = place

    def load(self) -> click.Command:
        module, _, attribute = self._place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


def _loaded(command: click.Command) -> click.Command:
    return command.load() if isinstance(command, Later) else command


class _Loaded(UserDict[str, click.Command]):
    """Commands by name. A `Later` is replaced by its command when it is taken."""

    def __getitem__(self, name: str) -> click.Command:
        return _loaded(self.data[name])


class LaterGroup(Guessing):
    """A group with commands of other modules."""

    def __init__(self, *args: Any, later: Iterable[Later], **named: Any) -> None:
        super().__init__(*args, **named)
        self._later = {str(command.name): command for command in later}
        self.commands = _Loaded(self._later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command without its module: enough for help and for completion."""
        return self._later.get(self.meant(ctx, cmd_name)) or super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _loaded(command), rest
