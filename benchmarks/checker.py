"""The answer checker beside math-verify, on the same cases in one run.

    python benchmarks/checker.py [--quick] [--json FILE]

math-verify is called as verl calls it (`math_metric` with LaTeX gold extraction, LaTeX and expression
extraction of the prediction, gold and bare answers in a box). Our own memories of read answers are emptied
before every call, so that each time is that of a first check. Then `check_many` runs over rollouts drawn from
real ones in groups of 64, and single checks over the same texts give the p99.
Needs ../shared/checker and ../shared/data.
"""

import argparse
import json
import logging
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_pipeline.answers import check, check_many, count_reasons
from grpo_pipeline.answers.checker import _gold_problem
from grpo_pipeline.answers.reading import read

SHARED = Path(__file__).resolve().parents[2] / "shared"
ADVERSARIAL = {"injection", "hang", "size", "chars", "hack", "thread"}
GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
GROUP = 64


def lines(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return [json.loads(line) for line in file]


def ours(gold: str, text: str, mode: str) -> bool:
    return check(gold, text, mode).verdict == "correct"


def forget() -> None:
    read.cache_clear()
    _gold_problem.cache_clear()


def math_verify_as_verl() -> Callable[[str, str, str], bool]:
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    logging.disable(logging.CRITICAL)
    metric = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
    )

    def grade(gold: str, text: str, mode: str) -> bool:
        text = f"\\boxed{{{text}}}" if mode == "answer" and "\\boxed" not in text else text
        try:
            return bool(metric([f"\\boxed{{{gold}}}"], [text])[0] > 0.5)
        except Exception:  # noqa: BLE001 - verl counts a failure as 0
            return False

    return grade


def quantiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median_ms": round(1e3 * statistics.median(ordered), 4),
        "p90_ms": round(1e3 * ordered[int(0.9 * len(ordered))], 3),
        "p99_ms": round(1e3 * ordered[int(0.99 * len(ordered))], 3),
        "max_ms": round(1e3 * ordered[-1], 1),
    }


def side_by_side(cases: list[dict[str, Any]]) -> dict[str, Any]:
    graders = {"ours": ours, "math_verify_verl": math_verify_as_verl()}
    for grade in graders.values():  # imports and worker starts are not the cases'
        grade("\\frac{1}{2}", "0.5", "answer")
        grade("\\frac{\\pi}{4}", "\\int_0^1 \\frac{1}{1+x^2} dx", "answer")
    times: dict[str, list[float]] = {name: [] for name in graders}
    right: dict[str, list[bool]] = {name: [] for name in graders}
    for case in cases:
        for name, grade in graders.items():
            forget()
            started = time.perf_counter()
            verdict = grade(case["gold"], case["pred"], case["mode"])
            times[name].append(time.perf_counter() - started)
            right[name].append(verdict is case["expected"])
    figures: dict[str, Any] = {
        name: {"accuracy": round(sum(right[name]) / len(cases), 4), **quantiles(times[name])} for name in graders
    }
    kinds = sorted({case["kind"] for case in cases})
    figures["by_kind"] = {
        kind: {"cases": sum(case["kind"] == kind for case in cases)}
        | {name: _share(right[name], cases, kind) for name in graders}
        for kind in kinds
    }
    figures["cases"] = len(cases)
    figures["median_speedup"] = round(figures["math_verify_verl"]["median_ms"] / figures["ours"]["median_ms"], 1)
    return figures


def _share(right: list[bool], cases: list[dict[str, Any]], kind: str) -> float:
    """Percent of the cases of a kind with the right verdict."""
    chosen = [good for good, case in zip(right, cases, strict=True) if case["kind"] == kind]
    return round(100 * sum(chosen) / len(chosen), 1)


def rollouts(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Groups of 64 rollouts a problem, half MATH, half GSM8K, drawn from the real ones of the problem."""
    math = lines(SHARED / "data" / "math" / "qwen_math_cot_rollouts.jsonl")
    gsm8k = lines(SHARED / "data" / "gsm8k" / "example_model_solutions.jsonl")
    hard = [(row["gt"], row["code"]) for row in math]
    easy = [
        (row["ground_truth"].rsplit("A: ", 1)[1].strip(), [row[name]["solution"] for name in GSM8K_MODELS])
        for row in gsm8k
    ]
    rng = random.Random(seed)
    golds, texts = [], []
    while len(golds) < count:
        gold, solutions = rng.choice(rng.choice((hard, easy)))
        golds += [gold] * GROUP
        texts += rng.choices(solutions, k=GROUP)
    return golds[:count], texts[:count]


def bulk(count: int) -> dict[str, Any]:
    golds, texts = rollouts(count)
    best, checks = 0.0, []
    for _ in range(3):
        forget()
        started, cpu = time.perf_counter(), time.process_time()
        checks = check_many(golds, texts)
        wall, used = time.perf_counter() - started, time.process_time() - cpu
        if count / wall > best:
            best, best_cpu = count / wall, used
    single = []
    for gold, text in list(zip(golds, texts, strict=True))[: count // 10]:
        forget()
        started = time.perf_counter()
        check(gold, text)
        single.append(time.perf_counter() - started)
    return {
        "rollouts": count,
        "checks_per_second": round(best),
        "checks_per_cpu_second_of_this_process": round(count / best_cpu),
        "distinct_texts": len(set(texts)),
        "mean_chars": round(sum(map(len, texts)) / count),
        "reasons": count_reasons(checks),
        "single_check": quantiles(single),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases = [c for c in lines(SHARED / "checker" / "handed.jsonl") if not c.get("disputed")]
    core = [c for c in cases if c["kind"] not in ADVERSARIAL and "pred_gen" not in c]
    figures = {
        "core_cases": side_by_side(core[::10] if arguments.quick else core),
        "check_many": bulk(10_000 if arguments.quick else 100_000),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
