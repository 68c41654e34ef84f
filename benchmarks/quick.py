"""The regression gate: our fast paths against their plain forms, in ratios that do not depend on the machine's speed.

    python benchmarks/quick.py [--json FILE] [--store]

Each case runs a fast path and the plain path that gives the same result, one after the other, several times, on one
thread. Times are CPU seconds of this process, and the ratio is that of the fastest runs, so that other work on the
machine changes little. A ratio more than 20% below the one in `baseline.json` fails; it is measured once more first.
`--store` writes the baseline anew.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decode import build_prompts, generate, ours
from logprob_backward import make_rows, packed_step, padded_step, tiny_model

from grpo_pipeline.config import EngineConfig
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.models.loading import load_policy, load_tokenizer
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.scoring import judge

ROOT = Path(__file__).resolve().parents[1]
BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 0.2
REPEATS = 5
LEAST_SECONDS = 0.2

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def decode_pairs() -> dict[str, Pair]:
    """The fast decode against `model.generate` and against our own plain loop."""
    folder = ROOT / "data" / "tiny"
    tokenizer, model = load_tokenizer(folder), load_policy(folder)
    prompts = build_prompts(tokenizer, 16)
    fast, plain = (TransformersEngine(model, tokenizer, "m", EngineConfig(decode=kind)) for kind in ("fast", "plain"))
    return {
        "decode_over_generate": (
            lambda: ours(fast, prompts, 8, 48, 0),
            lambda: generate(model, tokenizer, prompts, 8, 48, 0),
        ),
        "decode_over_plain_loop": (lambda: ours(fast, prompts, 8, 48, 0), lambda: ours(plain, prompts, 8, 48, 0)),
    }


def update_pairs() -> dict[str, Pair]:
    """Log-probabilities and backward: packed against padded, and our layers against transformers' own."""
    policy, reference = tiny_model(), tiny_model().requires_grad_(False)
    rows = make_rows(16, 8, 40, 10, 80, 256)
    packed = lambda fused: packed_step(policy, reference, rows, 4096, fused=fused)  # noqa: E731
    return {
        "packed_over_padded": (lambda: packed(True), lambda: padded_step(policy, reference, rows, 64)),
        "fused_over_transformers_layers": (lambda: packed(True), lambda: packed(False)),
    }


def scoring_pairs() -> dict[str, Pair]:
    """A PRM's scores with prompts shared and packed, against padded batches."""
    model = RewardModel.from_policy(ROOT / "data" / "tiny", "prm", 0)
    rows = make_rows(16, 8, 40, 15, 45, 256)
    sequences = [row.tokens.astype(np.int32) for row in rows]
    positions = [np.linspace(row.n_prompt, len(row.tokens) - 1, 4).astype(np.int32) for row in rows]
    prompts = [row.n_prompt for row in rows]
    return {
        "scoring_over_padded": (
            lambda: judge(model, sequences, positions, n_prompt=prompts),
            lambda: judge(model, sequences, positions, packing=False),
        )
    }


def measure(pair: Pair) -> float:
    """How many times the plain path's CPU time is the fast path's."""
    times: tuple[list[float], list[float]] = ([], [])
    counts = [1, 1]  # runs in one timing, so that none is shorter than LEAST_SECONDS
    for repeat in range(REPEATS + 1):
        for side, run in enumerate(pair):
            started = time.process_time()
            for _ in range(counts[side]):
                run()
            spent = (time.process_time() - started) / counts[side]
            if repeat:
                times[side].append(spent)
            else:  # the first warms up
                counts[side] = math.ceil(LEAST_SECONDS / max(spent, 1e-3))
    return min(times[1]) / min(times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the ratios there")
    parser.add_argument("--store", action="store_true", help="make these ratios the baseline")
    options = parser.parse_args()
    torch.set_num_threads(1)
    baseline = {} if options.store else json.loads(BASELINE.read_text())
    ratios, failed = {}, []
    for name, pair in (decode_pairs() | update_pairs() | scoring_pairs()).items():
        ratio = measure(pair)
        least = (1 - TOLERANCE) * baseline.get(name, 0)
        if ratio < least:
            ratio = max(ratio, measure(pair))
        ratios[name] = round(ratio, 2)
        if ratio < least:
            failed.append(name)
        print(f"{name:34s} {ratio:6.2f}  baseline {baseline.get(name, '-')}", flush=True)
    if options.store:
        BASELINE.write_text(json.dumps(ratios, indent=2) + "\n")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n")
    if failed:
        sys.exit(f"slower than the baseline by more than {TOLERANCE:.0%}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
