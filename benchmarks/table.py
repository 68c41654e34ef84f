"""Write docs/performance.md's tables from the benchmarks' JSON files: `python benchmarks/table.py FOLDER`.

Every number in the document between the markers comes from these files; a benchmark that was not run has no row.
"""

import argparse
import json
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Figures = dict[str, Any]


def machine(figures: dict[str, Figures]) -> list[str]:
    """The machine, as the first benchmark that describes it saw it."""
    seen = next((f["machine"] for f in figures.values() if isinstance(f.get("machine"), dict)), None)
    if seen is None:
        return []
    rates, versions = seen["matmul_gflops"], ", ".join(f"{k} {v}" for k, v in seen["versions"].items())
    return [
        f"Machine: {seen['processor']}, {seen['cores']} cores ({seen['instructions']}), {seen['memory_gb']} GB. "
        f"Python {seen['python']}, {versions}. Products of 1024 x 1024 matrices run at {rates['float32']} GFLOP/s in "
        f"float32 and {rates['bfloat16']} in bfloat16 here.",
        "",
        "| benchmark | load average (1 min) when it ended |",
        "|---|---|",
        *(
            f"| {name} | {f['machine']['load_average_1min']} |"
            for name, f in figures.items()
            if isinstance(f.get("machine"), dict)
        ),
    ]


def grpo_step(f: Figures) -> list[str]:
    """(a) a whole step against TRL."""
    lines = [
        "| model | rows x tokens | prompt | type | ours, tokens/s | TRL | ratio (spread) | ratio of CPU time | "
        "peak ours, GB | TRL | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in ("tiny", "tiny_until_eos", "smollm2"):
        if name not in f:
            continue
        one = f[name]
        low, high = one["ratio_spread"]
        rows = one["settings"]["prompts"] * one["settings"]["group"]
        cpu = one["cpu_seconds"]["trl"] / one["cpu_seconds"]["ours"]
        cpu *= one["completion_tokens"]["ours"] / one["completion_tokens"]["trl"]
        lines.append(
            f"| {name} | {rows} x {one['completion_tokens']['ours'] / rows:.0f} "
            f"| {one['mean_prompt_tokens']['ours']:.0f} "
            f"| {one['dtype']} | {one['tokens_per_second']['ours']:.0f} | {one['tokens_per_second']['trl']:.0f} "
            f"| {one['ratio']:.2f} ({low:.2f} to {high:.2f}) | {cpu:.2f} | {one['peak_gb']['ours']:.2f} "
            f"| {one['peak_gb']['trl']:.2f} | {one['memory_ratio']:.2f} |"
        )
    return lines


def decode(f: Figures) -> list[str]:
    """(b) decode against `model.generate`."""
    low, high = f["decode_ratio_spread"]
    rates = f["tokens_per_second"]
    return [
        "| rows | ours, tokens/s | `model.generate` | ratio (spread) | ratio of CPU time | samples as plain |",
        "|---|---|---|---|---|---|",
        f"| {f['rows']} | {rates['ours']:.0f} | {rates['generate']:.0f} | {f['decode_ratio']:.2f} ({low:.2f} to "
        f"{high:.2f}) | {f['decode_cpu_ratio']:.2f} | {f['samples_equal_plain']:.1%} |",
    ]


def logprob_backward(f: Figures) -> list[str]:
    """(c) log-probabilities and backward against a padded loop."""
    lines = [
        "| lengths | padded, s | ours, s | ratio | share of the arithmetic bound |",
        "|---|---|---|---|---|",
    ]
    for name, one in f.items():
        if isinstance(one, dict) and "packed_seconds" in one:
            lines.append(
                f"| {name} | {one['padded_seconds']:.2f} | {one['packed_seconds']:.2f} | {one['ratio']:.2f} "
                f"| {one['bound_share']:.2f} |"
            )
    return lines


def overhead(f: Figures) -> list[str]:
    """(f) store and Prefect."""
    seconds = f["seconds"]
    return [
        "| the same stage | seconds |",
        "|---|---|",
        f"| library alone | {seconds['bare']:.2f} |",
        f"| with the store ({f['shards']} shards) | {seconds['store']:.2f} |",
        f"| with the store, as a Prefect task | {seconds['prefect']:.2f} |",
        f"| start of a local Prefect server, once a flow run | {f['server_start_seconds']:.1f} |",
    ]


def labels_parquet(f: Figures) -> list[str]:
    """Step labels by problem."""
    low, high = f["query_seconds_spread"]
    return [
        "| step labels | problems | on disk | query, s (spread) | CPU s |",
        "|---|---|---|---|---|",
        f"| {f['rows']:,} | {f['problems']:,} | {f['parquet_mb']} MB | {f['query_seconds']} ({low} to {high}) "
        f"| {f['query_cpu_seconds']} |",
    ]


def scaling(f: Figures) -> list[str]:
    """Doublings."""
    lines = ["| quantity | sizes | CPU seconds | times, for each doubling |", "|---|---|---|---|"]
    for name in ("problems", "group", "completions", "length"):
        rows = f[name]
        sizes = ", ".join(str(row["size"]) for row in rows)
        seconds = ", ".join(f"{row['cpu_seconds']:.2f}" for row in rows)
        doublings = ", ".join(f"{row['doubling']:.2f}" for row in rows[1:])
        lines.append(f"| {name} | {sizes} | {seconds} | {doublings} |")
    return lines


def quick(f: Figures) -> list[str]:
    """The gate's ratios."""
    return ["| pair | ratio of CPU time |", "|---|---|", *(f"| {name} | {ratio} |" for name, ratio in f.items())]


SECTIONS = {
    "grpo_step": ("A GRPO step against TRL's GRPOTrainer", grpo_step),
    "decode": ("Decode against `model.generate`", decode),
    "logprob_backward": ("Log-probabilities and backward against a padded loop, embedded size", logprob_backward),
    "logprob_backward_smollm2": ("The same for SmolLM2-135M", logprob_backward),
    "scaling": ("Cost when a quantity doubles", scaling),
    "labels_parquet": ("Step labels by problem", labels_parquet),
    "overhead": ("Store and Prefect", overhead),
    "quick": ("Fast paths against plain ones (the regression gate)", quick),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds NAME.json of each benchmark")
    options = parser.parse_args()
    figures = {
        name: json.loads((options.folder / f"{name}.json").read_text())
        for name in SECTIONS
        if (options.folder / f"{name}.json").is_file()
    }
    lines = machine(figures)
    for name, found in figures.items():
        title, table = SECTIONS[name]
        lines += ["", f"## {title}", "", f"`benchmarks/{name.removesuffix('_smollm2')}.py`", "", *table(found)]
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
