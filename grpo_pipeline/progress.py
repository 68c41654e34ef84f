"""Progress bars for long stages, with rate and time left, on standard error; silent where nobody watches."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_lock = threading.RLock()
_shown: Progress | None = None
_open_bars = 0


class Bar:
    """One bar; does nothing where nothing is shown."""

    def __init__(self, shown: Progress | None, description: str, total: int | None, unit: str) -> None:
        self._shown = shown
        self._task = shown.add_task(description, total=total, unit=unit) if shown is not None else None

    def advance(self, n: int = 1) -> None:
        """Say that n more units are done."""
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
    global _shown, _open_bars  # noqa: PLW0603  (a terminal has one live display)
    with _lock:
        if _shown is None:
            _shown = _start_display()
        _open_bars += 1
        bar = Bar(_shown, description, total, unit)
    try:
        yield bar
    finally:
        with _lock:
            _open_bars -= 1
            bar._close(keep=_open_bars == 0)
            if _open_bars == 0 and _shown is not None:
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
