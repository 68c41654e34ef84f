"""Does the cost grow linearly? Problems, group size, completions and length, doubled three times each.

    python benchmarks/scaling.py [--quick] [--json FILE]

One quantity is doubled while the others stay. Times are CPU seconds of this process on one thread: the best of a few
runs, taken in turns over the sizes. `doubling` is the time of a size over that of the one before it: 2 is linear.

| quantity | what is run |
|---|---|
| problems | a GRPO step's sampling and update, 8 rollouts of 24 tokens each |
| group | the same for 8 problems |
| completions | the completions of 32 prefixes |
| length | a GRPO step's sampling and update of 128 rollouts |
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decode import build_prompts
from logprob_backward import packed_step
from machine import describe_machine, write_report

from grpo_pipeline.config import EngineConfig
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.models.loading import load_policy, load_tokenizer
from grpo_pipeline.training.batching import response_row

FOLDER = Path(__file__).resolve().parents[1] / "data" / "tiny"
DOUBLINGS = 3


class Workload:
    """Sampling and update on the embedded model, with responses of exact lengths."""

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(FOLDER)
        self.policy, self.reference = load_policy(FOLDER), load_policy(FOLDER).requires_grad_(requires_grad=False)
        self.engine = TransformersEngine(self.policy, self.tokenizer, "m", EngineConfig(max_batch=128))
        self.engine._eos_ids = frozenset()  # every response has its full length

    def sample(self, problems: int, group: int, length: int) -> None:
        """Responses of `problems` prompts."""
        prompts = build_prompts(self.tokenizer, problems)
        requests = [Request(p, [i * group + j for j in range(group)]) for i, p in enumerate(prompts)]
        self.engine.generate(requests, SamplingParams(max_tokens=length))

    def step(self, problems: int, group: int, length: int) -> None:
        """Sampling, and log-probabilities and backward of as many random responses."""
        self.sample(problems, group, length)
        rng = np.random.default_rng(0)
        prompts = build_prompts(self.tokenizer, problems)
        # Problems by number, so that equal prompts of different problems are not shared.
        rows = [
            response_row([3 + i % 500, *prompt], rng.integers(3, 500, length))
            for i, prompt in enumerate(prompts)
            for _ in range(group)
        ]
        self.policy.zero_grad()
        packed_step(self.policy, self.reference, rows, 4096)


def sizes(base: int, doublings: int) -> list[int]:
    """`base`, doubled so often."""
    return [base * 2**i for i in range(doublings + 1)]


def measure(run: Callable[[int], Any], values: list[int], repeats: int) -> list[dict[str, float]]:
    """CPU seconds of each size, the best of several in turns, and their quotients."""
    best = dict.fromkeys(values, float("inf"))
    run(values[0])
    for _ in range(repeats):
        for value in values:
            started = time.process_time()
            run(value)
            best[value] = min(best[value], time.process_time() - started)
    rows = []
    for before, value in zip([None, *values], values, strict=False):
        row = {"size": value, "cpu_seconds": round(best[value], 4)}
        if before is not None:
            row["doubling"] = round(best[value] / best[before], 3)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one doubling, fewer repeats")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    doublings, repeats = (1, 2) if options.quick else (DOUBLINGS, 3)
    work = Workload()
    runs: dict[str, tuple[Callable[[int], Any], int]] = {
        "problems": (lambda n: work.step(n, 8, 24), 16),
        "group": (lambda n: work.step(8, n, 24), 16),
        "completions": (lambda n: work.sample(32, n, 24), 4),
        "length": (lambda n: work.step(16, 8, n), 24),
    }
    tables = {name: measure(run, sizes(base, doublings), repeats) for name, (run, base) in runs.items()}
    quotients = [row["doubling"] for rows in tables.values() for row in rows if "doubling" in row]
    report = {"largest_doubling": max(quotients), **tables, "machine": describe_machine()}
    write_report(report, options.json)


if __name__ == "__main__":
    main()
