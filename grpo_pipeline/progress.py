"""Progress of long stages: bars on standard error where a terminal watches, and counts for whoever asks.

`counts` is what Prefect's progress artifacts are made from. A stage that runs in a child process sends its counts to
the parent, which takes them over by `relay`.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_lock = threading.RLock()
_shown: Progress | None = None
_open: list["Bar"] = []
_relayed: dict[object, tuple["Count", ...]] = {}


@dataclass(frozen=True)
class Count:
    """How far something is.

    Attributes:
        description: What is being done.
        unit: What is counted, in the plural.
        done: Units done.
        total: Units in all; None where that is not known.
    """

    description: str
    unit: str
    done: int
    total: int | None


def counts() -> tuple[Count, ...]:
    """Every open bar's count, the outermost first: this process's own, then those of its children.

    Children that do the same thing at once have one count between them.
    """
    with _lock:
        found = [Count(bar.description, bar.unit, bar.done, bar.total) for bar in _open]
        of_children = [count for relayed in _relayed.values() for count in relayed]
    together: dict[tuple[str, str], Count] = {}
    for count in of_children:
        before = together.get((count.description, count.unit))
        together[count.description, count.unit] = count if before is None else _add(before, count)
    return (*found, *together.values())


def _add(a: Count, b: Count) -> Count:
    total = None if a.total is None or b.total is None else a.total + b.total
    return Count(a.description, a.unit, a.done + b.done, total)


def relay(child: object, its_counts: Sequence[Count]) -> None:
    """Take over the counts of a child process; an empty sequence when it has ended.

    Args:
        child: Whose they are; anything that tells children apart.
        its_counts: Its counts, in place of those from before.
    """
    with _lock:
        if its_counts:
            _relayed[child] = tuple(its_counts)
        else:
            _relayed.pop(child, None)


def fraction(bars: Sequence[Count]) -> float | None:
    """How much of the outermost bar is done, 0 to 1, with the share of its current unit; None where not known.

    Bars inside it are taken for one another's parts: 1 of 4 shards and 30 of 60 rollouts are 1.5 of 4.
    """
    inner = 0.0
    for bar in reversed(bars):
        if bar.total:
            inner = min((bar.done + (inner if bar.done < bar.total else 0.0)) / bar.total, 1.0)
    return inner if any(bar.total for bar in bars) else None


class Bar:
    """One bar; drawn where a terminal watches, counted everywhere."""

    def __init__(self, shown: Progress | None, description: str, total: int | None, unit: str) -> None:
        self.description = description
        self.unit = unit
        self.total = total
        self.done = 0
        self._shown = shown
        self._task = shown.add_task(description, total=total, unit=unit) if shown is not None else None

    def advance(self, n: int = 1) -> None:
        """Say that n more units are done."""
        with _lock:
            self.done += n
        if self._shown is not None and self._task is not None:
            self._shown.advance(self._task, n)

    def _close(self, keep: bool) -> None:
        if self._shown is not None and self._task is not None:
            self._shown.stop_task(self._task)
            if not keep:
                self._shown.remove_task(self._task)


class _Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {unit}/s", style="progress.data.speed")


@contextmanager
def progress(description: str, total: int | None, unit: str) -> Iterator[Bar]:
    """Show a bar while the block runs.

    Nested and concurrent bars share the screen and go when they are done; the last one stays.

    Args:
        description: What is being done.
        total: Units in all; None where that is not known.
        unit: What is counted, in the plural: shards, rollouts, steps.
    """
    global _shown  # noqa: PLW0603  (a terminal has one live display)
    with _lock:
        if _shown is None:
            _shown = _start_display()
        bar = Bar(_shown, description, total, unit)
        _open.append(bar)
    try:
        yield bar
    finally:
        with _lock:
            _open.remove(bar)
            bar._close(keep=not _open)
            if not _open and _shown is not None:
                _shown.stop()
                _shown = None


def _start_display() -> Progress | None:
    console = Console(file=sys.stderr)
    is_fellow = os.environ.get("RANK", "0") != "0"  # one of several training processes, whose first one shows
    if not console.is_terminal or is_fellow:
        return None
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
    )
    shown.start()
    return shown
