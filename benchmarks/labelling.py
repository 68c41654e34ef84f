"""What cheaper schedules of completer calls cost and are worth, against brute force and the exact oracle.

    python benchmarks/labelling.py [--quick] [--json FILE] [--plot FILE]

Solutions of generated problems are labelled by every schedule with the same draws (a draw is a function of
completer, prefix and index; the ledger holds each once). Policy and completer are one model. Three sets:

- `embedded`: the embedded model as it is, about 4 steps a solution, right in about 30%;
- `short`: the embedded model after a few updates on worked solutions, right in about 45%;
- `long`: about 10 steps a solution. The embedded model solves 1% of such problems, so its place is taken by
  the demonstrator that it learned from, with its habits at a third of their strength (`benchmarks/habitual.py`),
  which is right in about 45%.

For each schedule, without and with correct solutions skipped:

- `completions_ratio`: completions used, as a share of brute force's;
- `equal`: share of solutions whose hard labels equal the schedule's definition worked out from brute force's
  labels (first_error: up to and including the first zero; closure: after the closure). binary and
  soft_adaptive have no such definition; for binary `equal` is the share with brute force's first bad step;
- `as_brute`: share of its labelled steps whose hard label is brute force's;
- `truth`: share of labelled steps whose hard label is the oracle's, and `labelled`, the share labelled.

The curves show how far labels from N completions are right, over the sampled steps of `short` and `long`: of the
hard label its accuracy, of the soft label the accuracy of its better half (1 where it is at least 0.5), the area
under the ROC curve (does it rank good steps above bad ones), and the Brier score.

Top level of the JSON: `adaptive_equal` (the smaller of first_error's and closure's `equal`, over all sets),
first_error's `completions_ratio` and `completions_ratio_skip` on `short`, `..._long` on `long`, and
`binary_disagreement`, the share of solutions in which binary finds another first bad step than brute force, by
set.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import polars as pl
from habitual import HabitualSolver
from rich.console import Console
from rich.table import Table

from grpo_pipeline.config import EngineConfig, LabellingConfig, ModelConfig, PromptConfig
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.evaluation.binary import roc_auc
from grpo_pipeline.evaluation.oracle import judge_rollouts
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.ledger import Ledger
from grpo_pipeline.labelling.receipt import receipt_rates
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.rollouts import check_rollouts, sample_rollouts
from grpo_pipeline.tables import from_rows

N = 8
WAVES = (1, 2)
CURVE = (1, 2, 4, 8, 16)
CURVES = ("short", "long")
SCHEDULES = ("brute", "first_error", "closure", "binary", "soft_adaptive")
SETS = {"embedded": (2, 4, 96), "short": (2, 4, 96), "long": (8, 10, 256)}  # operations, response tokens
SIZES = {"embedded": (75, 2), "short": (100, 2), "long": (100, 2)}  # problems, solutions of each
QUICK_SIZES = {"embedded": (20, 1), "short": (30, 1), "long": (15, 1)}
SEED = 20_000
MODEL = Path(__file__).resolve().parents[1] / "data" / "tiny"
UPDATES, LR = 4, 3.5e-4  # bring the embedded model to about 45%
STRENGTH = 1 / 3


def open_policy(name, folder, problems):
    """The engine of a set."""
    if name == "embedded":
        return open_engine(MODEL, ModelConfig(), EngineConfig(), model_id="embedded")
    if name == "short":
        improve(folder)
        return open_engine(folder, ModelConfig(), EngineConfig(), model_id="short")
    from grpo_pipeline.models.loading import load_tokenizer

    return HabitualSolver(load_tokenizer(MODEL), problems, STRENGTH)


def improve(folder):
    """Save the embedded model after a few updates on worked solutions of problems that no run is given."""
    import torch
    from transformers import AutoModelForCausalLM

    from grpo_pipeline.models.loading import load_tokenizer
    from grpo_pipeline.models.tiny import TinyRecipe, encode, train
    from grpo_pipeline.prompts import build_prompt

    tokenizer, recipe = load_tokenizer(MODEL), TinyRecipe(drills=0, steps=UPDATES, lr=LR, warmup=5)
    rows = generate_problems(UPDATES * recipe.batch, SEED, *SETS["short"][:2], pool="demonstrations")
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(MODEL, use_safetensors=True)
    pairs = [(build_prompt(row["question"]), row["gold_solution"]) for row in rows]
    train(model, [], encode(tokenizer, pairs), recipe, SEED)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_problems(name, count):
    """Problems of one set."""
    low, high, _ = SETS[name]
    return [
        {"problem_id": problem_id(row["question"], row["gold_answer"]), "split": "train"} | row
        for row in generate_problems(count, SEED, low, high)
    ]


def make_set(engine, name, rows, rollouts):
    """A set's problems with its policy's solutions, checked and split."""
    problems = from_rows(rows, "problems")
    prompts = PromptBuilder(engine.tokenizer, PromptConfig())
    sampling = SamplingParams(max_tokens=SETS[name][2])
    sampled = sample_rollouts(
        problems, engine, prompts, sampling, group_size=rollouts, stage="benchmark", round=0, seed=SEED
    ).frame
    checked = check_rollouts(sampled, problems)
    return (problems, sampled, checked, split_rollouts(sampled, engine.tokenizer, "line")), sampling


def hard_by_solution(result):
    """rollout_id -> hard labels in order."""
    frame = result.step_labels.sort("rollout_id", "step_index")
    return {key: group["hard"].to_list() for (key,), group in frame.group_by("rollout_id", maintain_order=True)}


def by_definition(schedule, labels, correct, skip):
    """What a schedule's labels are, worked out from brute force's labels of one solution."""
    if skip and correct:
        return [1] * len(labels)
    if schedule == "closure":
        return [1 if 1 in labels[step:] else label for step, label in enumerate(labels)]
    if schedule in ("first_error", "binary") and 0 in labels:
        end = labels.index(0) + 1
        return labels[:end] + [None] * (len(labels) - end)
    return labels


def first_bad(labels):
    return labels.index(0) if 0 in labels else None


def compare(schedule, found, brute, correct, skip):
    """Share of solutions that are as the schedule's definition says."""
    equal = []
    for key, labels in hard_by_solution(found).items():
        expected = by_definition(schedule, brute[key], key in correct, skip)
        equal.append(first_bad(labels) == first_bad(expected) if schedule == "binary" else labels == expected)
    return sum(equal) / len(equal)


def against_truth(step_labels, truth):
    """Agreement of hard labels with the oracle, over labelled steps; and the share labelled."""
    joined = step_labels.join(truth, on=["rollout_id", "step_index"])
    labelled = joined.filter(pl.col("hard").is_not_null())
    return {
        "truth": labelled.select(((pl.col("hard") == 1) == pl.col("is_good")).mean()).item(),
        "labelled": labelled.height / joined.height,
    }


def measure_schedules(frames, sampling, engine, ledger, truth):
    """Every schedule on one set, at N completions."""
    _, rollouts, checked, _ = frames
    finished = rollouts.filter(pl.col("finish_reason") == "stop").select("rollout_id")
    correct = set(checked.filter(pl.col("verdict") == "correct").join(finished, on="rollout_id")["rollout_id"])
    figures = {}
    brute_result = None
    for wave in WAVES:
        for schedule in SCHEDULES:
            if schedule == "brute" and brute_result is not None:
                continue
            for skip in (False, True):
                config = LabellingConfig(completions=N, schedule=schedule, wave=wave, skip_correct=skip)
                found = label_steps(*frames, engine, config, sampling, seed=SEED, ledger=ledger)
                if schedule == "brute" and not skip:
                    brute_result, brute = found, hard_by_solution(found)
                entry = {
                    "completions_ratio": receipt_rates(found.receipt)["completions_ratio"],
                    "equal": None if schedule == "soft_adaptive" else compare(schedule, found, brute, correct, skip),
                    "as_brute": as_brute(found.step_labels, brute_result.step_labels),
                    **against_truth(found.step_labels, truth),
                }
                if schedule == "soft_adaptive":
                    entry["soft_error"] = soft_error(found.step_labels, brute_result.step_labels)
                name = schedule if schedule == "brute" else f"{schedule}/wave{wave}"
                figures[f"{name}/skip" if skip else name] = entry
    speed = receipt_rates(brute_result.receipt)["tokens_per_second"]
    return figures, len(correct) / rollouts.height, speed


def as_brute(found, brute):
    """Share of labelled steps with brute force's hard label."""
    keys = ["rollout_id", "step_index"]
    joined = found.join(brute.select(*keys, reference="hard"), on=keys).drop_nulls(["hard", "reference"])
    return (joined["hard"] == joined["reference"]).mean()


def soft_error(found, brute):
    """Mean absolute difference of soft labels to brute force's."""
    keys = ["rollout_id", "step_index"]
    joined = found.join(brute.select(*keys, reference="soft"), on=keys)
    return joined.select((pl.col("soft") - pl.col("reference")).abs().mean()).item()


def measure_curve(frames, sampling, engine, ledger, truth):
    """Label accuracy against N, over sampled steps."""
    rows = []
    for n in CURVE:
        config = LabellingConfig(completions=n)
        labels = label_steps(*frames, engine, config, sampling, seed=SEED, ledger=ledger).step_labels
        joined = labels.filter(pl.col("label_source") == "sampled").join(truth, on=["rollout_id", "step_index"])
        good, soft = joined["is_good"].cast(pl.Float64), joined["soft"]
        rows.append(
            {
                "n": n,
                "steps": joined.height,
                "hard_accuracy": ((joined["hard"] == 1) == joined["is_good"]).mean(),
                "soft_accuracy": ((soft >= 0.5) == joined["is_good"]).mean(),
                "soft_brier": ((soft - good) ** 2).mean(),
                "soft_auc": roc_auc(joined["is_good"], soft),
            }
        )
    return rows


def plot_curves(curves, path):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.8), layout="constrained", sharey=True)
    lines = {"hard_accuracy": ("o", "hard label: accuracy"), "soft_accuracy": ("s", "soft label >= 0.5: accuracy"),
             "soft_auc": ("^", "soft label: area under ROC")}  # fmt: skip
    for axis, (name, rows) in zip(axes, curves.items(), strict=True):
        ns = [row["n"] for row in rows]
        for figure_name, (marker, label) in lines.items():
            axis.plot(ns, [row[figure_name] for row in rows], marker=marker, label=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(ns, [str(n) for n in ns])
        axis.set(xlabel="N, completions of each step", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("against the exact oracle")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=130)


def show(report):
    console = Console(width=110)
    columns = ("completions_ratio", "equal", "as_brute", "truth", "labelled", "soft_error")
    for name, part in report["sets"].items():
        steps, accuracy = part["steps_per_solution"], part["accuracy"]
        title = f"{name}: {part['solutions']} solutions of {steps:.1f} steps, accuracy {accuracy:.0%}"
        table = Table("schedule", *(column.replace("_", " ") for column in columns), title=title)
        for schedule, entry in part["schedules"].items():
            table.add_row(schedule, *(number(entry.get(key)) for key in columns))
        console.print(table)
    for name, rows in report["curves"].items():
        curve = Table(*(key.replace("_", " ") for key in rows[0]), title=f"{name}: labels against N")
        for row in rows:
            curve.add_row(*(number(value) for value in row.values()))
        console.print(curve)
    for key, value in report.items():
        if not isinstance(value, dict):
            console.print(f"{key}: {number(value)}")


def number(value):
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def measure_set(name, size, folder, ledger):
    """Everything about one set."""
    rows = make_problems(name, size[0])
    engine = open_policy(name, folder / "model", rows)
    frames, sampling = make_set(engine, name, rows, size[1])
    truth = judge_rollouts(frames[0], frames[3])
    schedules, accuracy, speed = measure_schedules(frames, sampling, engine, ledger, truth)
    curve = measure_curve(frames, sampling, engine, ledger, truth) if name in CURVES else None
    engine.close()
    figures = {
        "solutions": frames[1].height,
        "steps_per_solution": frames[3].height / frames[1].height,
        "accuracy": accuracy,
        "schedules": schedules,
        "tokens_per_second": speed,
    }
    return figures, curve


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer solutions")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write the curves as an image here")
    options = parser.parse_args()
    sizes = QUICK_SIZES if options.quick else SIZES
    start = time.perf_counter()
    sets, curves = {}, {}
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder)) as ledger:
        for name in SETS:
            sets[name], curve = measure_set(name, sizes[name], Path(folder), ledger)
            if curve is not None:
                curves[name] = curve
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    exact = [
        part["schedules"][f"{schedule}/wave{wave}{skip}"]
        for part in sets.values()
        for schedule in ("first_error", "closure")
        for wave in WAVES
        for skip in ("", "/skip")
    ]
    short, long = sets["short"]["schedules"], sets["long"]["schedules"]
    report = {
        "adaptive_equal": min(entry["equal"] for entry in exact),
        "completions_ratio": short["first_error/wave1"]["completions_ratio"],
        "completions_ratio_skip": short["first_error/wave1/skip"]["completions_ratio"],
        "completions_ratio_long": long["first_error/wave1"]["completions_ratio"],
        "completions_ratio_long_skip": long["first_error/wave1/skip"]["completions_ratio"],
        "binary_disagreement": {name: 1 - part["schedules"]["binary/wave1"]["equal"] for name, part in sets.items()},
        "seconds": time.perf_counter() - start,
        "curves": curves,
        "sets": sets,
    }
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        plot_curves(curves, options.plot)


if __name__ == "__main__":
    main()
