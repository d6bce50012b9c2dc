"""Formats output for people: tables, sizes, ages, progress."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from magnetar_core.runtime.data.visible import visible

T = TypeVar("T")

# Seconds after which an operation shows its progress.
PATIENCE_S = 2.0


def size(size_bytes: float) -> str:
    """`1.5 KiB`"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def duration(seconds: float) -> str:
    """`340 ms`, `12 s`, `5 min`, `3 h`, `2 days`"""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, unit_s, below_s in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < below_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def age(wall_ms: int | None, now_ms: int) -> str:
    """How long ago *wall_ms* was; `never` if it is None."""
    return "never" if wall_ms is None else f"{duration((now_ms - wall_ms) / 1000)} ago"


def share(part: float, whole: float) -> str:
    """`[####------] 42 %`"""
    if whole <= 0:
        return "-"
    filled = round(10 * min(max(part / whole, 0), 1))
    return f"[{'#' * filled}{'-' * (10 - filled)}] {100 * part / whole:.0f} %"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print *rows* below *head* in columns. On a terminal, long cells are wrapped to its width."""
    rows = [tuple(map(visible, row)) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in head:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(table)
        return
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def lines(texts: Iterable[str]) -> None:
    """Print each of *texts* on a line of its own."""
    for text in texts:
        click.echo(visible(text))


def settings(values: Mapping[str, Any]) -> None:
    """Print `name=value` lines, sorted by name."""
    for name, value in sorted(values.items()):
        click.echo(f"{name}={value}")


def values(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and their values."""
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(f"{name.ljust(width)}  {visible(text, lines=True)}".rstrip())


class Bar:
    """Progress of an operation. This one shows nothing, for output that is not a terminal."""

    def update(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """*done* of *total* (which may be unknown) is finished; *text* replaces the description."""

    def step(self) -> None:
        """One more item is finished."""


@contextlib.contextmanager
def bar(what: str, total: float | None = None) -> Iterator[Bar]:
    """Show the progress of *what* on standard error if that is a terminal, once it has taken more than two seconds."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console, RenderableType
    from rich.progress import Progress

    class Patient(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            if any((task.elapsed or 0) > PATIENCE_S for task in self.tasks):
                yield from super().get_renderables()

    class Shown(Bar):
        def update(self, done: float, total: float | None = None, text: str | None = None) -> None:
            progress_bar.update(task, completed=done, total=total, description=text)

        def step(self) -> None:
            progress_bar.advance(task)

    with Patient(console=Console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task(what, total=total)
        yield Shown()


@contextlib.contextmanager
def progress(items: Sequence[T], what: str) -> Iterator[Iterator[T]]:
    """Yield *items* while a progress bar is shown."""
    with bar(what, len(items)) as progress_bar:

        def each() -> Iterator[T]:
            for item in items:
                yield item
                progress_bar.step()

        yield each()
