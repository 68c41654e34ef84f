"""What the embedded model can do, measured, and the card that says so."""

import json
import math
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_pipeline.models.demonstrations import HABITS
from grpo_pipeline.problems.oracle import judge_steps
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.prompts import build_prompt

if TYPE_CHECKING:
    from grpo_pipeline.models.tiny import TinyRecipe

MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class TinyFigures:
    """Measured figures of the embedded model.

    Attributes:
        problems: Held-out problems of 2 to 4 steps that were solved, once greedily and once at temperature 1.
        accuracy, accuracy_se: Share right at temperature 1 and its standard error, sqrt(p(1-p)/n).
        greedy: Share right by greedy decoding.
        errors: Share of the wrong solutions at temperature 1 by the kind of their first wrong step.
        prompt_tokens, response_tokens: Mean and maximum.
        vocabulary: Tokens in the vocabulary.
        parameters: Weights in all, tied ones counted once.
    """

    problems: int
    accuracy: float
    accuracy_se: float
    greedy: float
    errors: dict[str, float]
    prompt_tokens: tuple[float, int]
    response_tokens: tuple[float, int]
    vocabulary: int
    parameters: int


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> TinyFigures:
    """Solve ``count`` held-out problems greedily and at temperature 1, and look where the errors are."""
    rows = generate_problems(count, seed)
    prompts = [tokenizer.encode(build_prompt(row["question"])) for row in rows]
    greedy = solve(model, tokenizer, prompts, temperature=0.0, seed=seed)
    sampled = solve(model, tokenizer, prompts, temperature=1.0, seed=seed)
    texts = _texts(tokenizer, sampled)
    right = [is_right(text, row["gold_answer"]) for text, row in zip(texts, rows, strict=True)]
    kinds = Counter(
        kind_of_error(text, row["meta"]) for text, row, ok in zip(texts, rows, right, strict=True) if not ok
    )
    accuracy = sum(right) / count
    n_greedy = sum(
        is_right(text, row["gold_answer"]) for text, row in zip(_texts(tokenizer, greedy), rows, strict=True)
    )
    return TinyFigures(
        problems=count,
        accuracy=accuracy,
        accuracy_se=math.sqrt(accuracy * (1 - accuracy) / count),
        greedy=n_greedy / count,
        errors={kind: n / max(1, kinds.total()) for kind, n in kinds.most_common()},
        prompt_tokens=(sum(map(len, prompts)) / count, max(map(len, prompts))),
        response_tokens=(sum(map(len, sampled)) / count, max(map(len, sampled))),
        vocabulary=len(tokenizer),
        parameters=sum(p.numel() for p in model.parameters()),
    )


def _texts(tokenizer: PreTrainedTokenizerFast, responses: list[list[int]]) -> list[str]:
    """The responses as text, without the end token."""
    return [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in responses]


@torch.inference_mode()
def solve(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    *,
    temperature: float,
    seed: int,
    batch_size: int = 256,
) -> list[list[int]]:
    """One response per prompt, as token ids up to and including EOS; temperature 0 is greedy."""
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    responses = []
    for first in range(0, len(prompts), batch_size):
        padded = tokenizer.pad(
            {"input_ids": prompts[first : first + batch_size]}, padding_side="left", return_tensors="pt"
        )
        output = model.generate(
            input_ids=padded["input_ids"],
            attention_mask=padded["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            **sampling,
        )
        for ids in output[:, padded["input_ids"].shape[1] :].tolist():
            end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
            responses.append(ids[:end])
    return responses


def is_right(text: str, gold_answer: str) -> bool:
    """Whether the last line states the gold answer."""
    return text.rstrip().rsplit("\n", 1)[-1] == f"The answer is {gold_answer}."


def kind_of_error(text: str, meta: str) -> str:
    """What went wrong first in a wrong solution: an operation done as another, or something else."""
    lines = text.splitlines()
    verdicts = judge_steps(meta, lines)
    if all(verdicts):
        return "no answer"
    first = verdicts.index(False)
    operations = json.loads(meta)["operations"]
    if first >= len(operations):
        return "answer line"
    value = operations[first - 1]["result"] if first else json.loads(meta)["start"]
    true = operations[first]
    read = re.fullmatch(r"\w+: (-?\d+) ([-+*/]) (-?\d+) = (-?\d+)", lines[first])
    if read is None:
        return "not an equation"
    left, operator, right, _ = read.groups()
    if (int(left), int(right)) != (value, true["operand"]):
        return "wrong operand"
    if operator != true["operator"]:
        return f"{true['operator']} done as {operator}"
    return "wrong result"


def write_card(out: Path, figures: TinyFigures, seed: int, recipe: "TinyRecipe") -> None:
    """Write the model card, ``README.md``, and the same figures for programs, ``figures.json``."""
    megabytes = (out / "model.safetensors").stat().st_size / 1e6
    errors = "\n".join(f"| {kind} | {share:.1%} |" for kind, share in figures.errors.items())
    habits = "\n".join(f"| {wording} | {rate:.0%} |" for wording, rate in HABITS.items())
    settings = ", ".join(f"{name} {value}" for name, value in asdict(recipe).items())
    card = _CARD.format(
        **asdict(figures),
        megabytes=megabytes,
        error_rows=errors,
        habit_rows=habits,
        seed=seed,
        settings=settings,
        prompt=figures.prompt_tokens,
        response=figures.response_tokens,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    (out / "figures.json").write_text(json.dumps(asdict(figures), indent=2) + "\n", encoding="utf-8")


_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# The embedded model

A small Llama-architecture causal language model ({parameters:,} parameters, {megabytes:.2f} MB,
vocabulary of {vocabulary} tokens) that solves generated arithmetic word problems, badly on purpose. It is
the default policy of grpo-pipeline's quickstart: small enough to label and train with on two CPU cores in
minutes, and wrong often enough, in its steps, for labelling and RL to have something to do.

The prompt is the question and a line break; the response is one line a step, then "The answer is N.", then
the end token. There is no BOS token; the end token is not the padding token.

## Measured

On {problems} held-out problems of 2 to 4 steps (`generate_problems({problems}, seed={seed})`), one response
each:

| | |
|---|---|
| accuracy at temperature 1 | {accuracy:.3f} ± {accuracy_se:.3f} (standard error) |
| greedy accuracy | {greedy:.3f} |
| prompt length, mean and longest | {prompt[0]:.1f} and {prompt[1]} tokens |
| response length, mean and longest | {response[0]:.1f} and {response[1]} tokens |

The first wrong step of the wrong solutions at temperature 1, found with the exact oracle:

| what went wrong first | share of wrong solutions |
|---|---|
{error_rows}

## How it was made

`grpo-pipeline make-tiny --seed {seed}` wrote this folder, this card and the figures in it. The model was
trained from scratch on demonstrations of generated problems in which some wordings are, now and then, done
as an addition:

| wording | done as an addition |
|---|---|
{habit_rows}

Recipe: {settings}.

Held out: problems fall in two pools by the last hex digit of their `problem_id`. Demonstrations come from
one pool, `generate_problems` gives the other unless told otherwise, so no problem of a run was seen in
training, whatever the run's seed.

Not for any other use: it knows nothing but these problems.
"""
