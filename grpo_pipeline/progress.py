"""A progress bar with rate and time left, on standard error, and nothing at all when that is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Called with the number of items that were finished."""


@contextmanager
def progress_bar(description: str, total: int | None, unit: str, enabled: bool = True) -> Iterator[Advance]:
    """Show a bar while the block runs.

    Args:
        description: What is being done, e.g. ``sampling rollouts``.
        total: Items in all; None where it is not known beforehand.
        unit: What an item is, e.g. ``rollouts``; the rate is shown in it.
        enabled: False shows nothing.

    Yields:
        A function to call with the number of newly finished items.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} {unit}/s")

    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total}" if total is not None else "{task.completed:.0f}"),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda n: bar.advance(task, n)
