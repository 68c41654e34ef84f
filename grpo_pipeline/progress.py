"""Progress bars for long stages, with rate and time left, on standard error; silent where nobody watches."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Advance = Callable[[int], None]
"""Called with the number of units that were finished."""

_lock = threading.RLock()
_shown: "Progress | None" = None


@contextmanager
def progress_bar(description: str, total: int | None, unit: str, enabled: bool = True) -> Iterator[Advance]:
    """Show a bar while the block runs. Nested and concurrent bars share the screen.

    Args:
        description: What is being done, e.g. ``sampling rollouts``.
        total: Units in all; None where that is not known beforehand.
        unit: What is counted, in the plural: shards, rollouts, steps.
        enabled: False shows nothing.

    Yields:
        A function to call with the number of newly finished units.
    """
    global _shown  # noqa: PLW0603  (a terminal has one live display)
    owner = False
    with _lock:
        if enabled and _shown is None:
            _shown = _start()
            owner = _shown is not None
        display = _shown if enabled else None
        task = display.add_task(description, total=total, unit=unit) if display is not None else None

    def advance(units: int) -> None:
        if display is not None and task is not None:
            display.advance(task, units)

    try:
        yield advance
    finally:
        with _lock:
            if display is not None and task is not None:
                display.stop_task(task)
                if not owner:
                    display.remove_task(task)
            if owner and _shown is not None:
                _shown.stop()
                _shown = None


def _start() -> "Progress | None":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as ProgressTask
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units a second."""

        def render(self, task: ProgressTask) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s", style="progress.data.speed")

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        Rate(),
        TimeRemainingColumn(),
    )
    display = Progress(*columns, console=console)
    display.start()
    return display
