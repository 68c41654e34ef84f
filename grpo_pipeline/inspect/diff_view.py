"""The differences of `diff`, printed."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_pipeline.inspect.artifact import show
from grpo_pipeline.inspect.diff import Section


def show_diff(sections: Sequence[Section], a: str, b: str, console: Console) -> None:
    """Print the sections; A and B are named once, at the top."""
    console.print(Text(f"A: {a}\nB: {b}"))
    for section in sections:
        if section.pairs:
            table = Table(title=section.title, title_justify="left")
            for column in ("", "A", "B", "B - A"):
                table.add_column(column, justify="left" if not column else "right", overflow="fold")
            for name, (left, right) in section.pairs.items():
                table.add_row(Text(name), Text(show(left)), Text(show(right)), _difference(left, right))
            console.print(table)
        if section.facts:
            facts = Table(title=section.title, title_justify="left", show_header=False)
            for name, value in section.facts.items():
                facts.add_row(Text(name), Text(show(value)))
            console.print(facts)
    if not any(section.pairs or section.facts for section in sections):
        console.print("no difference")


def _difference(left: object, right: object) -> str:
    numbers = [value for value in (left, right) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2:
        return ""
    difference = numbers[1] - numbers[0]
    return f"{difference:+,}" if isinstance(difference, int) else f"{difference:+.4g}"
