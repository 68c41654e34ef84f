"""Labelling in shards: memory does not grow with the number of completions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import json, random, sys, resource
from pathlib import Path
sys.path.insert(0, {root!r})
from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.ledger import Ledger
from tests.labelling.scripted import ScriptedEngine, check_many, make_world

folder, shards, solutions, n = Path(sys.argv[1]), int(sys.argv[2]), 125, 8
chances = lambda prompt: (0.4, 0.1, 0.0, 0.0)
config, sampling = LabellingConfig(completions=n, max_tokens=60), SamplingConfig()
peaks, rows = [], 0
with Ledger(folder / "ledger") as ledger:
    for shard in range(shards):
        rng = random.Random(shard)
        lines = lambda: [f"step {{rng.random()}}" for _ in range(4)] + ["The answer is 1"]
        world = make_world([(1, lines(), "stop") for _ in range(solutions)])
        engine = ScriptedEngine(chances)
        result = label_steps(*world.label_args(), engine, config, sampling, seed=0, ledger=ledger, checker=check_many)
        for table in ("completions", "step_labels"):
            getattr(result, table).write_parquet(folder / f"{{table}}-{{shard}}.parquet")
        rows += result.completions.height
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    kept = len(ledger)
print(json.dumps({{"rows": rows, "kept": kept, "peaks_mb": peaks}}))
"""


def stream(folder, completions):
    shards = completions // (125 * 4 * 8)
    child = subprocess.run(
        [sys.executable, "-c", CHILD.format(root=str(ROOT)), str(folder), str(shards)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(child.stdout)


@pytest.mark.slow
def test_memory_stays_where_it_was_after_the_first_shards(tmp_path):
    """100,000 completions; benchmarks/label_memory.py runs a million through the whole stage."""
    result = stream(tmp_path, 100_000)
    assert result["rows"] == result["kept"] == 100_000
    peaks = result["peaks_mb"]
    assert peaks[-1] < 1500
    # What the first five shards (20,000 completions) needed is enough for all of them.
    assert peaks[-1] < peaks[4] + 64
