"""A scripted completer: solves generated problems with the embedded model's bad habits, at a given strength.

The embedded model learned its errors from demonstrations in which some wordings are, now and then, done as an
addition (`grpo_pipeline.models.demonstrations`). This engine is that demonstrator itself, for problems too long
for so small a model: it reads how far the prefix has come and what value it has reached, right or wrong, goes
on from there, and each remaining operation falls to its habit with `strength` times the demonstrations' rate.
It never corrects an error. Its draws are a function of the request's seed alone.
"""

import json
import random
import re

import numpy as np

from grpo_pipeline.engines.outputs import check_prompts
from grpo_pipeline.engines.protocol import Sample
from grpo_pipeline.models.demonstrations import HABITS
from grpo_pipeline.problems.synthetic import apply

_EQUATION = re.compile(r"=\s*(-?\d+)")


class HabitualSolver:
    """An engine (see `grpo_pipeline.engines.protocol`) over a tokenizer and the problems that it may be asked."""

    def __init__(self, tokenizer, problems, strength, max_model_len=512):
        self.model_id = f"habits x {strength}"
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self.strength = strength
        self._operations = {
            row["question"]: (int(meta["start"]), meta["operations"])
            for row in problems
            for meta in (json.loads(row["meta"]),)
        }

    def generate(self, requests, sampling, on_result=None):
        check_prompts(requests, self.max_model_len)
        results = []
        for index, request in enumerate(requests):
            question, _, so_far = self.tokenizer.decode(request.prompt_token_ids).partition("\n")
            results.append([self._sample(question, so_far, seed, sampling.max_tokens) for seed in request.seeds])
            if on_result is not None:
                on_result(index, results[-1])
        return results

    def _sample(self, question, so_far, seed, max_tokens):
        value, operations = self._operations[question]
        reached = _EQUATION.findall(so_far)
        if reached:
            value = int(reached[-1])
        rng = random.Random(seed)
        lines = []
        for operation in operations[len(reached) :]:
            struck = rng.random() < self.strength * HABITS.get(operation["wording"], 0.0)
            operator = "+" if struck else operation["operator"]
            result = apply(operator, value, operation["operand"])
            lines.append(f"{operation['time']}: {value} {operator} {operation['operand']} = {result}")
            value = result
        text = "\n".join([*lines, f"The answer is {value}."])
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        if len(ids) > max_tokens:
            ids = ids[:max_tokens]
            return self._made(ids, self.tokenizer.decode(ids), "length")
        return self._made(ids, text, "stop")

    @staticmethod
    def _made(ids, text, reason):
        return Sample(np.array(ids, np.int32), np.zeros(len(ids), np.float32), text, reason)

    def close(self):
        """Nothing to end."""
