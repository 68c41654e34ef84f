"""Memory of the labelling stage: does not grow with the number of completions.

    python benchmarks/label_memory.py [--quick] [--json FILE] [--completions 1000000]

Runs the real stage (store, shards, ledger, checker) on generated problems with a scripted solver in the place of
policy and completer (`benchmarks/habitual.py`), and watches the resident memory of this process after every shard.
`peak_mb` is the highest, `growth_mb` what it grew from a tenth of the run to its end.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from habitual import HabitualSolver
from rich.console import Console
from rich.table import Table

from grpo_pipeline.config import parse_config
from grpo_pipeline.engines import opening
from grpo_pipeline.labelling import label
from grpo_pipeline.models.loading import load_tokenizer
from grpo_pipeline.stages import labels, models, problems, rollouts
from grpo_pipeline.stages.run import run_root

MODEL = Path(__file__).resolve().parents[1] / "data" / "tiny"
N = 16
ROLLOUTS = 4
DISTINCT = 6.0  # distinct prefixes of a problem's four solutions, about
PROBLEMS_PER_SHARD = 64


def memory_mb():
    """Resident memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def watch(measured):
    """Let every shard that is labelled note the memory and the completions so far."""
    original = label.label_steps

    def watched(*args, **kwargs):
        result = original(*args, **kwargs)
        done = (measured[-1]["completions"] if measured else 0) + result.completions.height
        measured.append({"completions": done, "mb": memory_mb()})
        if len(measured) % 10 == 1:
            print(f"{done:,} completions, {measured[-1]['mb']:,.0f} MB", flush=True)
        return result

    label.label_steps = watched


def run(folder, completions):
    """The stages up to labels; the memory after every shard."""
    count = round(completions / (N * DISTINCT))
    config = parse_config(
        {
            "root": str(folder),
            "problems": {"count": count, "eval_count": 1},
            "sampling": {"max_tokens": 96},
            "labelling": {"problems": count, "rollouts": ROLLOUTS, "completions": N},
            "store": {"problems_per_shard": PROBLEMS_PER_SHARD},
        },
        "benchmark",
    )
    given = problems.make_problems(config)
    rows = given.read("problems").select("question", "meta").to_dicts()
    solver = HabitualSolver(load_tokenizer(MODEL), rows, strength=1.0)
    opening.open_engine = lambda *_, **__: solver
    policy = models.base_policy(config)
    solutions = rollouts.sample_rollouts(config, "label", 0, given, policy)
    measured = []
    watch(measured)
    start, before = time.perf_counter(), memory_mb()
    labelled = labels.label_steps(config, 0, given, solutions, policy)
    rows = {name: table.rows for name, table in labelled.manifest().tables.items()}
    ledger = sum(path.stat().st_size for path in (Path(run_root(config)) / "ledger").glob("*.sqlite*"))
    tenth = next(point for point in measured if point["completions"] >= measured[-1]["completions"] / 10)
    return {
        "completions": rows["completions"],
        "steps": rows["step_labels"],
        "shards": len(measured),
        "before_mb": before,
        "tenth_mb": tenth["mb"],
        "end_mb": measured[-1]["mb"],
        "growth_mb": measured[-1]["mb"] - tenth["mb"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ledger_mb": ledger / 2**20,
        "seconds": time.perf_counter() - start,
        "memory": measured,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--completions", type=int, default=1_000_000, help="about so many")
    parser.add_argument("--quick", action="store_true", help="20,000 completions")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), 20_000 if options.quick else options.completions)
    table = Table("figure", "value")
    for name, value in report.items():
        if name != "memory":
            table.add_row(name, f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
