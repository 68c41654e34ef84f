"""A run made up of generated problems whose solutions' every label, score and truth is known by construction.

Solution i of a problem is right for even i. Odd ones write a wrong result in line ``wrong_from`` and go on from it, so
that by the oracle's definition the steps before are good and all others bad.
"""

import random
import re

import numpy as np
import polars as pl

from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.seeds import derive_id
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows
from tests.labelling.scripted import CharTokenizer

TOKENIZER = CharTokenizer()
COMPLETIONS = 4


def spoil(line):
    """The line with its last number made wrong."""
    *_, last = re.finditer(r"\d+", line)
    return f"{line[: last.start()]}{int(last[0]) + 1}{line[last.end() :]}"


def write_solution(gold, wrong_from):
    """Text of a solution that is right up to line `wrong_from` (None: all of it)."""
    lines = gold.strip().split("\n")
    return "\n".join(line if wrong_from is None or i < wrong_from else spoil(line) for i, line in enumerate(lines))


class MadeRun:
    """Builds the run's artifacts; `truth` and `scores` say what the page must show.

    Attributes:
        truth: (rollout_id, step_index) -> whether the step is good.
        scores: (rollout_id, step_index) -> score, of labelled and held-out solutions alike.
        soft: (rollout_id, step_index) -> soft label, of labelled solutions.
    """

    def __init__(self, folder, *, problems=8, per_problem=4, rounds=2, oracle=True, seed=1):
        self.store = Store(folder)
        self.random = random.Random(seed)
        self.per_problem, self.oracle = per_problem, oracle
        self.truth, self.scores, self.soft = {}, {}, {}
        rows = [
            row | {"problem_id": problem_id(row["question"], row["gold_answer"]), "split": "eval" if i % 2 else "train"}
            for i, row in enumerate(generate_problems(problems, seed, 2, 4))
        ]
        if not oracle:
            rows = [row | {"source": "others", "meta": None} for row in rows]
        self.problem_frame = from_rows(rows, "problems")
        self.problems = self.build("problems", 0, [], {"problems": self.problem_frame})
        self.rounds = rounds

    def build(self, stage, round, parents, frames, receipt=None, **config):
        spec = StageSpec(stage=stage, version=1, round=round, config=config, parents=tuple(parents), seed=7)
        return self.store.build(spec, 1, lambda _: ShardResult(frames, tokens=100, receipt=receipt or {}))

    def solutions(self, stage, round, split):
        rollouts, checked = [], []
        for row in self.problem_frame.filter(pl.col("split") == split).iter_rows(named=True):
            lines = row["gold_solution"].strip().split("\n")
            for index in range(self.per_problem):
                wrong_from = None if index % 2 == 0 else self.random.randrange(len(lines))
                text = write_solution(row["gold_solution"], wrong_from)
                name = derive_id(stage, round, row["problem_id"], index)
                tokens = [*TOKENIZER.encode(text), 0]
                for step in range(len(lines)):
                    self.truth[name, step] = wrong_from is None or step < wrong_from
                rollouts.append(
                    {
                        "rollout_id": name,
                        "problem_id": row["problem_id"],
                        "round": round,
                        "group_index": index,
                        "policy_id": f"policy-{round}",
                        "prompt_token_ids": TOKENIZER.encode(row["question"] + "\n"),
                        "token_ids": tokens,
                        "logprobs": [-0.5] * len(tokens),
                        "text": text,
                        "finish_reason": "stop",
                        "temperature": 1.0,
                        "top_p": 1.0,
                        "seed": index,
                    }
                )
                answer = re.findall(r"\d+", text)[-1]
                right = answer == row["gold_answer"]
                checked.append(
                    {
                        "rollout_id": name,
                        "problem_id": row["problem_id"],
                        "answer": answer,
                        "verdict": "correct" if right else "wrong",
                        "reason": "equal" if right else "different",
                        "checker_version": "1",
                    }
                )
        frames = {"rollouts": from_rows(rollouts, "rollouts"), "checked": from_rows(checked, "checked")}
        frames["steps"] = split_rollouts(frames["rollouts"], TOKENIZER, "line")
        return self.build(stage, round, [self.problems], frames), frames

    def label(self, round, rollouts, frames):
        completions, labels = [], []
        for row in frames["steps"].iter_rows(named=True):
            key = (row["rollout_id"], row["step_index"])
            ids = {name: row[name] for name in ("rollout_id", "problem_id", "step_index")}
            sampled = 0 if row["is_last"] else COMPLETIONS
            right = self.random.randint(1, COMPLETIONS) if self.truth[key] else self.random.randint(0, 1)
            soft = right / sampled if sampled else float(self.truth[key])
            self.soft[key] = soft
            completions += [
                ids
                | {
                    "completion_id": derive_id(*key, i),
                    "prefix_hash": row["prefix_hash"],
                    "completion_index": i,
                    "completer_id": f"policy-{round}",
                    "n_tokens": 10,
                    "text": f"The answer is {i < right}.",
                    "finish_reason": "stop",
                    "answer": "7" if i < right else str(90 + i % 2),
                    "verdict": "correct" if i < right else "wrong",
                    "seed": i,
                }
                for i in range(sampled)
            ]
            labels.append(
                ids
                | {
                    "n_completions": sampled,
                    "n_correct": right if sampled else 0,
                    "n_wrong": sampled - right if sampled else 0,
                    **dict.fromkeys(("n_no_answer", "n_truncated", "n_timeout"), 0),
                    "soft": soft,
                    "hard": int(soft > 0),
                    "ci_low": 0.0,
                    "ci_high": 1.0,
                    "label_source": "sampled" if sampled else "outcome",
                }
            )
        # Rollouts that share a prefix share its completions, as labelling has it.
        shared = from_rows(completions, "completions").unique(
            ("prefix_hash", "completion_index"), maintain_order=True, keep="first"
        )
        tables = {"completions": shared, "step_labels": from_rows(labels, "step_labels")}
        return self.build(
            "step_labels", round, [self.problems, rollouts], tables, labelling={"completions": COMPLETIONS}
        )

    def score(self, round, rollouts, frames):
        rows = []
        for row in frames["steps"].iter_rows(named=True):
            key = (row["rollout_id"], row["step_index"])
            low, high = (0.5, 1.0) if self.truth[key] else (0.0, 0.6)
            self.scores[key] = float(np.float32(self.random.uniform(low, high)))
            ids = {name: row[name] for name in ("rollout_id", "problem_id", "step_index")}
            rows.append(ids | {"score": self.scores[key], "prm_id": f"prm-{round}"})
        return self.build("step_scores", round, [rollouts], {"step_scores": from_rows(rows, "step_scores")})

    def measure(self, round):
        base = {"round": round, "subject_id": "m", "n": 4}
        policy = [("accuracy", 0.5 + 0.1 * round, 0.02), ("pass1", 0.5, None), ("pass2", 0.7, None)]
        rows = [base | {"subject": "policy", "metric": m, "value": v, "standard_error": s} for m, v, s in policy]
        self.build(
            "policy_evaluation",
            round,
            [self.problems],
            {"evaluations": from_rows(rows, "evaluations")},
            aggregate="min",
        )
        rows = [
            base | {"subject": s, "metric": m, "value": v}
            for s, m, v in (("prm", "auc", 0.8), ("labels", "hard_label_accuracy", 0.9))
        ]
        self.build("prm_evaluation", round, [self.problems], {"evaluations": from_rows(rows, "evaluations")})

    def whole(self):
        """Every part of every round."""
        for number in range(self.rounds):
            labelled, frames = self.solutions("label_rollouts", number, "train")
            self.label(number, labelled, frames)
            self.score(number, labelled, frames)
            held_out, held_frames = self.solutions("evaluate_rollouts", number, "eval")
            self.score(number, held_out, held_frames)
            metrics = [
                {"step": i + 1, "round": number, "stage": "policy", "reward": 0.1 * i, "kl": 0.01 * i} for i in range(5)
            ]
            self.build("policy", number, [self.problems], {"metrics": from_rows(metrics, "metrics")})
            self.measure(number)
        return self
