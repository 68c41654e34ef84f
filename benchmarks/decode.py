"""The fast decode against `model.generate`, side by side in one process: `python benchmarks/decode.py`.

Both sample the same number of responses from the same prompts, `--prompts` problems x `--group` samples, at
temperature 1 until EOS or `--max-tokens`; repeats alternate. What counts is response tokens a second up to and
including EOS. The JSON holds `decode_ratio`, the median over repeats of ours / generate's, and whether the fast
decode's samples are those of the plain loop for the same seeds, with the largest difference of log-probabilities.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, write_report

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.models.loading import load_policy, load_tokenizer

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
NAMES = ["Tom", "Ann", "Ben", "Eva", "Sam", "Lea"]
THINGS = ["apples", "books", "coins", "eggs", "pens"]


def build_prompts(tokenizer, count):
    """Word problems of two to four steps, about 50 tokens."""
    prompts = []
    for i in range(count):
        name, thing = NAMES[i % len(NAMES)], THINGS[i % len(THINGS)]
        text = f"{name} has {i % 9 + 3} {thing}. {name} buys {i % 7 + 2} more {thing}. Then {name} gives {i % 4 + 1} "
        text += f"{thing} to a friend." + (f" {name} loses {i % 2 + 1} {thing}." if i % 2 else "")
        prompts.append(tokenizer.encode(f"{text} How many {thing} does {name} have now?\n"))
    return prompts


def ours(engine, prompts, group, max_tokens, repeat):
    requests = [Request(p, [repeat * 10_000 + i * group + j for j in range(group)]) for i, p in enumerate(prompts)]
    results = engine.generate(requests, SamplingParams(max_tokens=max_tokens))
    return sum(len(sample.token_ids) for samples in results for sample in samples)


def generate(model, tokenizer, prompts, group, max_tokens, repeat):
    torch.manual_seed(repeat)
    longest, eos = max(map(len, prompts)), tokenizer.eos_token_id
    rows = [[eos] * (longest - len(p)) + p for p in prompts for _ in range(group)]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts for _ in range(group)]
    out = model.generate(
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_tokens,
        pad_token_id=eos,
    )
    # Up to and including the first EOS of each row; what follows is padding.
    return sum(row.index(eos) + 1 if eos in row else len(row) for row in out[:, longest:].tolist())


def compare_with_plain(model, tokenizer, prompts, group, max_tokens):
    """Whether samples are equal, and the largest difference of log-probabilities."""
    requests = [Request(p, [i * group + j for j in range(group)]) for i, p in enumerate(prompts)]
    sampling = SamplingParams(max_tokens=max_tokens)
    fast, plain = (
        TransformersEngine(model, tokenizer, "m", EngineConfig(decode=decode)).generate(requests, sampling)
        for decode in ("fast", "plain")
    )
    pairs = [pair for some, others in zip(fast, plain, strict=True) for pair in zip(some, others, strict=True)]
    equal = [np.array_equal(one.token_ids, other.token_ids) for one, other in pairs]
    gaps = [np.abs(a.logprobs - b.logprobs).max() for (a, b), same in zip(pairs, equal, strict=True) if same]
    return sum(equal) / len(equal), float(max(gaps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quick", action="store_true", help="3 repeats, and a quarter of the comparison with plain")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    repeats = 3 if args.quick else args.repeats
    config = ModelConfig(path=str(args.model), dtype=args.dtype)
    tokenizer = load_tokenizer(args.model)
    model = load_policy(args.model, dtype=config.dtype, device=config.device)
    prompts = build_prompts(tokenizer, args.prompts)
    engine = TransformersEngine(model, tokenizer, "m", EngineConfig(max_batch=args.prompts * args.group))
    runs = {
        "ours": lambda repeat: ours(engine, prompts, args.group, args.max_tokens, repeat),
        "generate": lambda repeat: generate(model, tokenizer, prompts, args.group, args.max_tokens, repeat),
    }
    rates = {name: [] for name in runs}
    cpu = {name: [] for name in runs}
    for repeat in range(-1, repeats):  # the first is the warm-up
        for name, run in runs.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            tokens = run(repeat)
            if repeat >= 0:
                rates[name].append(tokens / (time.perf_counter() - start))
                cpu[name].append(tokens / (time.process_time() - start_cpu))
    ratios = [a / b for a, b in zip(rates["ours"], rates["generate"], strict=True)]
    equal, gap = compare_with_plain(model, tokenizer, prompts[:: 4 if args.quick else 1], args.group, args.max_tokens)
    report = {
        "decode_ratio": statistics.median(ratios),
        "decode_ratio_spread": [min(ratios), max(ratios)],
        "decode_cpu_ratio": statistics.median(cpu["ours"]) / statistics.median(cpu["generate"]),
        "tokens_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "samples_equal_plain": equal,
        "logprob_gap_plain": gap,
        "rows": args.prompts * args.group,
        "mean_prompt_tokens": statistics.mean(map(len, prompts)),
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "machine": describe_machine(),
    }
    write_report(report, args.json)


if __name__ == "__main__":
    main()
