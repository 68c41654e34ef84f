"""The cost receipt: what a label run sampled, reused, implied and saved against brute force.

A receipt holds sums, so that those of a run's shards add up in the manifest; rates follow from the sums.
"""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def receipt_rates(receipt: Mapping[str, Any]) -> dict[str, float | None]:
    """What follows from a receipt's sums; None where there is nothing to divide by.

    Args:
        receipt: ``solutions``, ``completions_brute`` (what brute force asks for: N of each distinct prefix),
            ``completions_sampled``, ``completions_reused`` (from the ledger), ``tokens_sampled``, ``seconds``,
            ``engine_seconds``.

    Returns:
        ``completions_ratio`` (sampled and reused to brute force), ``tokens_per_second`` (of the engine's
        time) and ``seconds_per_solution``.
    """
    used = receipt["completions_sampled"] + receipt["completions_reused"]
    return {
        "completions_ratio": _ratio(used, receipt["completions_brute"]),
        "tokens_per_second": _ratio(receipt["tokens_sampled"], receipt["engine_seconds"]),
        "seconds_per_solution": _ratio(receipt["seconds"], receipt["solutions"]),
    }


def render_receipt(receipt: Mapping[str, Any], round: int) -> Table:
    """The receipt of a round's labels and its rates as a table for the terminal."""
    table = Table(title=f"Labelling cost, round {round} ({receipt['schedule']})", show_header=False)
    for name, value in {**receipt, **receipt_rates(receipt)}.items():
        if name != "schedule":
            shown = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
            table.add_row(name.replace("_", " "), shown)
    return table


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
