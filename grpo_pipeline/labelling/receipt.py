"""The cost receipt: what a label run sampled, reused, implied and saved against brute force."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table

_SUMS = (
    "solutions",
    "steps",
    "completions_sampled",
    "completions_reused",
    "completions_implied",
    "completions_brute",
    "completions_saved",
    "tokens_sampled",
    "tokens_reused",
    "seconds",
    "engine_seconds",
    "check_seconds",
)


def make_receipt(schedule: str, sums: dict[str, int | float]) -> dict[str, Any]:
    """A receipt with its rates.

    Args:
        schedule: The schedule's name.
        sums: ``solutions``, ``steps``; ``completions_*``: sampled by the engine, reused from the ledger,
            implied (brute force's draws of prefixes whose labels all follow from others), brute (what brute
            force asks for: N of each distinct prefix), saved (brute less sampled and reused); ``tokens_*``;
            ``seconds`` in all, of them ``engine_seconds`` and ``check_seconds``.

    Returns:
        The same, with ``completions_ratio`` (sampled and reused to brute), ``tokens_per_second`` (of the
        engine's time) and ``seconds_per_solution``; null where there is nothing to divide by.
    """
    used = sums["completions_sampled"] + sums["completions_reused"]
    return {
        "schedule": schedule,
        **{name: sums[name] for name in _SUMS},
        "completions_ratio": _ratio(used, sums["completions_brute"]),
        "tokens_per_second": _ratio(sums["tokens_sampled"], sums["engine_seconds"]),
        "seconds_per_solution": _ratio(sums["seconds"], sums["solutions"]),
    }


def merge_receipts(receipts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The receipt of several shards of one run.

    Raises:
        ValueError: No receipts, or of different schedules.
    """
    receipts = list(receipts)
    schedules = {receipt["schedule"] for receipt in receipts}
    if len(schedules) != 1:
        raise ValueError(f"receipts of one schedule are wanted, got {sorted(schedules)}")
    return make_receipt(schedules.pop(), {name: sum(receipt[name] for receipt in receipts) for name in _SUMS})


def render_receipt(receipt: dict[str, Any]) -> Table:
    """The receipt as a table for the terminal."""
    table = Table(title=f"Labelling cost, schedule {receipt['schedule']}", show_header=False)
    for name, value in receipt.items():
        if name != "schedule":
            shown = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
            table.add_row(name.replace("_", " "), shown)
    return table


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
