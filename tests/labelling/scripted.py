"""A scripted engine with known success probabilities, and a world of problems and solutions around it."""

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from grpo_pipeline.engines.protocol import Sample
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.rollouts import check_rollouts
from grpo_pipeline.tables import from_rows

EOS = 0


class CharTokenizer:
    """One token a character (its code point); token 0 is EOS."""

    eos_token_id = EOS
    pad_token_id = EOS
    chat_template = None

    def encode(self, text, *, add_special_tokens=True):
        return [ord(c) for c in text]

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(chr(t) for t in token_ids if t != EOS)


@dataclass
class ScriptedEngine:
    """Continues with a right, wrong, missing or endless answer; which one depends on (prefix, seed) alone.

    Attributes:
        chances: (question line, number of lines of the solution so far) -> chances of (correct, no_answer,
            truncated, timeout); what is left is wrong. A callable.
        calls: How many samples were made.
    """

    chances: object
    max_model_len: int = 10_000
    model_id: str = "scripted"
    tokenizer: CharTokenizer = field(default_factory=CharTokenizer)
    calls: int = 0
    batches: list = field(default_factory=list)

    def generate(self, requests, sampling, on_result=None):
        results = []
        self.batches.append(len(requests))
        for index, request in enumerate(requests):
            prompt = self.tokenizer.decode(request.prompt_token_ids)
            samples = [self._sample(prompt, seed, sampling.max_tokens) for seed in request.seeds]
            self.calls += len(samples)
            results.append(samples)
            if on_result is not None:
                on_result(index, samples)
        return results

    def _sample(self, prompt, seed, max_tokens):
        digest = hashlib.blake2b(f"{prompt}|{seed}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        correct, no_answer, truncated, timeout = self.chances(prompt)
        gold = prompt.split("=")[1].split("?")[0]
        text = f"so\nThe answer is {int(gold) + 1}"
        if draw < correct:
            text = f"so\nThe answer is {gold}"
        elif draw < correct + no_answer:
            text = "no idea"
        elif draw < correct + no_answer + truncated:
            text = "x" * (max_tokens + 1)
        elif draw < correct + no_answer + truncated + timeout:
            text = "The answer is SLOW"
        ids = ([ord(c) for c in text] + [EOS])[:max_tokens]
        cut = ids[-1] != EOS
        return Sample(
            np.array(ids, np.int32),
            np.zeros(len(ids), np.float32),
            self.tokenizer.decode(ids),
            "length" if cut else "stop",
        )

    def close(self):
        pass


@dataclass(frozen=True)
class Check:
    verdict: str
    answer: str | None
    reason: str = "scripted"


def check_many(golds, texts):
    """The last 'The answer is X' of the text; SLOW cannot be decided."""
    checks = []
    for gold, text in zip(golds, texts, strict=True):
        _, found, answer = text.rpartition("The answer is ")
        answer = answer.split("\n")[0].strip()
        if not found:
            checks.append(Check("no_answer", None))
        elif answer == "SLOW":
            checks.append(Check("timeout", answer))
        else:
            checks.append(Check("correct" if answer == gold else "wrong", answer))
    return checks


@dataclass(frozen=True)
class World:
    problems: pl.DataFrame
    rollouts: pl.DataFrame
    checked: pl.DataFrame
    steps: pl.DataFrame

    def label_args(self):
        return self.problems, self.rollouts, self.checked, self.steps


def problem_rows(n):
    return [
        {
            "problem_id": f"p{i}",
            "source": "test",
            "split": "train",
            "question": f"q{i}={i}?",
            "gold_answer": str(i),
            "gold_solution": f"easy\nThe answer is {i}",
            "meta": None,
        }
        for i in range(n)
    ]


def rollout_row(problem_id, index, prompt, text, finish_reason="stop"):
    ids = [ord(c) for c in text] + ([EOS] if finish_reason == "stop" else [])
    return {
        "rollout_id": f"{problem_id}r{index}",
        "problem_id": problem_id,
        "round": 0,
        "step": None,
        "group_index": index,
        "policy_id": "scripted",
        "prompt_token_ids": [ord(c) for c in prompt],
        "token_ids": ids,
        "logprobs": [0.0] * len(ids),
        "text": text,
        "finish_reason": finish_reason,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": index,
    }


def make_world(solutions):
    """A world from (problem number, lines, finish_reason) of each solution."""
    problems = from_rows(problem_rows(1 + max(number for number, _, _ in solutions)), "problems")
    rows = [
        rollout_row(f"p{number}", index, f"q{number}={number}?\n", "\n".join(lines), finish_reason)
        for index, (number, lines, finish_reason) in enumerate(solutions)
    ]
    rollouts = from_rows(rows, "rollouts")
    checked = check_rollouts(rollouts, problems, check_many)
    return World(problems, rollouts, checked, split_rollouts(rollouts, CharTokenizer(), "line"))


def random_world(seed, n_solutions=6, max_steps=7):
    """Solutions of a few problems that share beginnings now and then, some cut off, some undecided."""
    rng = random.Random(seed)
    solutions = []
    for _ in range(n_solutions):
        number = rng.randrange(3)
        lines = [f"step {rng.randrange(2)}" for _ in range(rng.randrange(max_steps))]
        ending = rng.choice([str(number), str(number), "99", "98", "SLOW", None])
        lines.append("I give up" if ending is None else f"The answer is {ending}")
        solutions.append((number, lines, rng.choice(["stop", "stop", "stop", "length"])))
    return make_world(solutions)


def random_chances(seed, undecided=True):
    """Chances per prefix, drawn from a hash of the prefix, with many zeros and some ones."""

    def chances(prompt):
        rng = random.Random(f"{seed}|{prompt}")
        correct = rng.choice([0.0, 0.0, 0.05, 0.2, 0.5, 0.9, 1.0])
        rest = 1 - correct
        if not undecided:
            return correct, 0.1 * rest, 0.0, 0.0
        if rng.random() < 0.1:
            return 0.0, 0.0, 0.0, 1.0
        return correct, 0.1 * rest, 0.2 * rest, 0.2 * rest

    return chances
