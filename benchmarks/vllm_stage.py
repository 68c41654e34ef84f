"""The labelling stage on vLLM against vLLM's own `LLM.generate`, side by side in one process.

    python benchmarks/vllm_stage.py --model models/local/smollm2 [--quick] [--json FILE]

Both complete the same prefixes (64 generated problems with worked solutions of four steps, after two worked
examples: 256 prefixes), N samples each, with the same engine, from an empty prefix cache; repeats alternate.
The stage is `label_steps` from beginning to end: schedule, ledger on disk, texts, checking. It is compared with

- `seeded`: `LLM.generate(prompts, SamplingParams(n=N, seed=...))`, whose samples are as reproducible as the stage's;
- `unseeded`: the same without a seed, which lets vLLM draw all samples of a step at once.

`throughput_ratio` is the median over repeats of the stage's tokens a second by `seeded`'s, `engine_ratio` the
same for the engine's time alone, `throughput_ratio_unseeded` the stage's by `unseeded`'s. `prefix_cache` has the hit
rate that vLLM reports for the stage's requests, and the ideal: whole blocks that an endless cache would find.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo_pipeline.config import EngineConfig, LabellingConfig, ModelConfig, PromptConfig
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.ledger import Ledger
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rollouts import check_rollouts
from grpo_pipeline.tables import from_rows

SEED = 20_000
STEPS = 4
EXAMPLES = 2
PROMPT = PromptConfig(template="Question: {question}\nAnswer: ", examples=EXAMPLES)
STOP = ("\nQuestion:",)


def make_world(tokenizer, count):
    """Problems and their worked solutions as if a policy had sampled them."""
    rows = [
        {"problem_id": problem_id(row["question"], row["gold_answer"]), "split": "train"} | row
        for row in generate_problems(count + EXAMPLES, SEED, STEPS, STEPS)
    ]
    prompts = PromptBuilder(tokenizer, PROMPT, rows[count:])
    problems = from_rows(rows[:count], "problems")
    rollouts = from_rows([rollout_row(row, prompts, tokenizer) for row in rows[:count]], "rollouts")
    checked = check_rollouts(rollouts, problems)
    return problems, rollouts, checked, split_rollouts(rollouts, tokenizer, "line")


def rollout_row(problem, prompts, tokenizer):
    ids = [*tokenizer.encode(problem["gold_solution"], add_special_tokens=False), tokenizer.eos_token_id]
    return {
        "rollout_id": problem["problem_id"],
        "problem_id": problem["problem_id"],
        "round": 0,
        "group_index": 0,
        "policy_id": "worked",
        "prompt_token_ids": prompts.encode(problem["question"]),
        "token_ids": ids,
        "logprobs": [0.0] * len(ids),
        "text": problem["gold_solution"],
        "finish_reason": "stop",
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }


def prefixes_of(world):
    """Token ids of every prefix that is completed."""
    rollouts = {row["rollout_id"]: row for row in world[1].iter_rows(named=True)}
    found = []
    for step in world[3].iter_rows(named=True):
        if not step["is_last"]:
            rollout = rollouts[step["rollout_id"]]
            found.append(rollout["prompt_token_ids"] + rollout["token_ids"][: step["token_end"] + 1])
    return found


def ideal_hits(prefixes, samples, block):
    """Prompt tokens that an endless prefix cache of whole blocks finds, over all samples of all prefixes."""
    seen, hits = set(), 0
    for prefix in prefixes:
        for _ in range(samples):
            # The last token is always computed, since its logits are wanted.
            whole = range(block, len(prefix), block)
            found = 0
            for end in whole:
                if tuple(prefix[:end]) not in seen:
                    break
                found = end
            hits += found
            seen.update(tuple(prefix[:end]) for end in range(block, len(prefix) + 1, block))
    return hits


def stage(engine, world, options, seed):
    """label_steps on a fresh ledger; (seconds, engine seconds, tokens)."""
    config = LabellingConfig(completions=options.samples, max_tokens=options.max_tokens)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder)) as ledger:
        start = time.perf_counter()
        sampling = SamplingParams(max_tokens=options.max_tokens, stop=STOP)
        receipt = label_steps(*world, engine, config, sampling, seed=seed, ledger=ledger).receipt
        seconds = time.perf_counter() - start
    return seconds, receipt["engine_seconds"], receipt["tokens_sampled"]


def plain(llm, prefixes, options, seed):
    """LLM.generate; (seconds, tokens)."""
    from vllm import SamplingParams as VllmParams
    from vllm import TokensPrompt

    params = VllmParams(n=options.samples, seed=seed, max_tokens=options.max_tokens, stop=list(STOP))
    start = time.perf_counter()
    outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prefixes], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return seconds, sum(len(sample.token_ids) for output in outputs for sample in output.outputs)


def measure(engine, world, options):
    llm = engine._llm
    prefixes = prefixes_of(world)
    block = llm.llm_engine.vllm_config.cache_config.block_size
    plain(llm, prefixes[:8], options, 0)  # what is compiled or allocated at first use
    rows, cache = [], None
    for repeat in range(options.repeats):
        row = {}
        arms = ["stage", "seeded", "unseeded"]
        for arm in arms if repeat % 2 == 0 else arms[::-1]:
            llm.reset_prefix_cache()
            before = engine.prefix_cache_counts()
            if arm == "stage":
                seconds, engine_seconds, tokens = stage(engine, world, options, repeat)
                row["engine"] = tokens / engine_seconds
                after = engine.prefix_cache_counts()
                cache = [now - then for now, then in zip(after, before, strict=True)]
            else:
                seconds, tokens = plain(llm, prefixes, options, repeat if arm == "seeded" else None)
            row[arm] = tokens / seconds
            row[f"{arm}_tokens"] = tokens
        print(json.dumps(row), flush=True)
        rows.append(row)
    queries, hits = cache
    looked_up = options.samples * sum(map(len, prefixes))
    ideal = ideal_hits(sorted(prefixes), options.samples, block) / looked_up
    return {
        "throughput_ratio": median(row["stage"] / row["seeded"] for row in rows),
        "throughput_ratio_unseeded": median(row["stage"] / row["unseeded"] for row in rows),
        "engine_ratio": median(row["engine"] / row["seeded"] for row in rows),
        "tokens_per_second": {arm: median(row[arm] for row in rows) for arm in ("stage", "engine", *arms[1:])},
        "repeats": rows,
        "prefix_cache": {
            "block_tokens": block,
            "hit_rate": hits / queries,
            "ideal": ideal,
            "share_of_ideal": hits / queries / ideal,
        },
        "prefixes": len(prefixes),
        "prompt_tokens_mean": sum(map(len, prefixes)) / len(prefixes),
    }


def median(values):
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="model folder, e.g. of `import-model smollm2`")
    parser.add_argument("--problems", type=int, default=64, help="four prefixes each")
    parser.add_argument("--samples", type=int, default=4, help="completions of each prefix")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, help="the model's, if not given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--eager", action="store_true", help="do not compile: starts sooner, samples slower")
    parser.add_argument("--quick", action="store_true", help="8 problems, once")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if options.quick:
        options.problems, options.repeats = 8, 1
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    config = EngineConfig(kind="vllm", max_model_len=options.max_model_len, enforce_eager=options.eager)
    with open_engine(options.model, ModelConfig(dtype=options.dtype), config, model_id="benchmark") as engine:
        world = make_world(engine.tokenizer, options.problems)
        report = measure(engine, world, options)
    report |= {
        "model": options.model.name,
        "dtype": options.dtype,
        "samples": options.samples,
        "max_tokens": options.max_tokens,
        "compiled": not options.eager,
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
    }
    table = Table("figure", "value", title=f"{report['prefixes']} prefixes x {options.samples}")
    for name in ("throughput_ratio", "throughput_ratio_unseeded", "engine_ratio"):
        table.add_row(name, f"{report[name]:.3f}")
    for part in ("tokens_per_second", "prefix_cache"):
        for name, value in report[part].items():
            table.add_row(f"{part}: {name}", f"{value:,.3f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
