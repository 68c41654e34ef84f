"""A miniature run through the store: two rounds of scripted problems, solutions, completions, labels and scores.

Four problems "How much is 2 + k?"; two solutions each, three steps each. Solution 0 is right. Solution 1 goes
wrong at step 1 + k % 2. One token a character.
"""

import math

import polars as pl

from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.prm_dataset import build_prm_rows
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.replay import mix_replay
from grpo_pipeline.seeds import derive_id
from grpo_pipeline.store import ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows
from tests.labelling.scripted import CharTokenizer

COMPLETIONS = 4
TOKENIZER = CharTokenizer()


def make_problems():
    rows = [
        {
            "problem_id": problem_id(f"How much is 2 + {k}?", str(2 + k)),
            "source": "scripted",
            "split": "eval" if k == 3 else "train",
            "question": f"How much is 2 + {k}?",
            "gold_answer": str(2 + k),
        }
        for k in range(4)
    ]
    return from_rows(rows, "problems")


def make_rollouts(problems, round):
    rollouts, checked = [], []
    for row in problems.iter_rows(named=True):
        k = int(row["gold_answer"]) - 2
        for index in range(2):
            answer = 2 + k + index
            text = f"Start with 2.\nAdd {k + index if k % 2 == 0 else k}.\nThe answer is {answer}"
            name = derive_id("label_rollouts", round, row["problem_id"], index)
            prompt = TOKENIZER.encode(row["question"] + "\n")
            tokens = [*TOKENIZER.encode(text), 0]
            rollouts.append(
                {
                    "rollout_id": name,
                    "problem_id": row["problem_id"],
                    "round": round,
                    "group_index": index,
                    "policy_id": f"policy-{round}",
                    "prompt_token_ids": prompt,
                    "token_ids": tokens,
                    "logprobs": [-0.5] * len(tokens),
                    "text": text,
                    "finish_reason": "stop",
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "seed": index,
                }
            )
            checked.append(
                {
                    "rollout_id": name,
                    "problem_id": row["problem_id"],
                    "answer": str(answer),
                    "verdict": "correct" if index == 0 else "wrong",
                    "reason": "equal" if index == 0 else "different",
                    "checker_version": "1",
                }
            )
    return from_rows(rollouts, "rollouts"), from_rows(checked, "checked")


def make_labels(rollouts, checked, steps, round):
    """Right solutions: 3, 4, 4 of 4 completions are correct; wrong ones: 3, 1, 0."""
    verdicts = dict(checked.select("rollout_id", "verdict").iter_rows())
    completions, labels = [], []
    for row in steps.iter_rows(named=True):
        right = verdicts[row["rollout_id"]] == "correct"
        n_correct = ((3, 4, 4) if right else (3, 1, 0))[row["step_index"]]
        sampled = 0 if row["is_last"] else COMPLETIONS
        ids = {name: row[name] for name in ("rollout_id", "problem_id", "step_index")}
        completer = f"policy-{round}"
        for i in range(sampled):
            good = i < n_correct
            completions.append(
                ids
                | {
                    "completion_id": derive_id(completer, row["rollout_id"], row["prefix_hash"], i),
                    "prefix_hash": row["prefix_hash"],
                    "completion_index": i,
                    "completer_id": completer,
                    "n_tokens": 10 + i,
                    "text": "The answer is " + ("right" if good else "wrong"),
                    "finish_reason": "stop",
                    "answer": "1",
                    "verdict": "correct" if good else "wrong",
                    "seed": i,
                }
            )
        soft = n_correct / COMPLETIONS if sampled else float(right)
        labels.append(
            ids
            | {
                "n_completions": sampled,
                "n_correct": n_correct if sampled else 0,
                "n_wrong": sampled - n_correct if sampled else 0,
                **dict.fromkeys(("n_no_answer", "n_truncated", "n_timeout"), 0),
                "soft": soft,
                "hard": int(soft > 0),
                "ci_low": max(0.0, soft - 0.25),
                "ci_high": min(1.0, soft + 0.25),
                "label_source": "sampled" if sampled else "outcome",
            }
        )
    return from_rows(completions, "completions"), from_rows(labels, "step_labels")


def make_scores(steps, checked, round):
    verdicts = dict(checked.select("rollout_id", "verdict").iter_rows())
    rows = [
        {
            **{name: row[name] for name in ("rollout_id", "problem_id", "step_index")},
            "score": 1 / (1 + math.exp(-(2 if verdicts[row["rollout_id"]] == "correct" else 1 - row["step_index"]))),
            "prm_id": f"prm-{round}",
        }
        for row in steps.iter_rows(named=True)
    ]
    return from_rows(rows, "step_scores")


def make_run(folder):
    """Build the run; returns stage -> its artifacts by round."""
    store = Store(folder)
    refs = {}

    def build(stage, round, parents, frames, receipt=None, **config):
        spec = StageSpec(stage=stage, version=1, round=round, config=config, parents=tuple(parents), seed=7)
        ref = store.build(spec, 1, lambda _: ShardResult(frames, tokens=100, receipt=receipt or {}))
        refs.setdefault(stage, []).append(ref)
        return ref

    problems = make_problems()
    problems_ref = build("problems", 0, [], {"problems": problems})
    history = {}
    for number in range(2):
        rollouts, checked = make_rollouts(problems.filter(pl.col("split") == "train"), number)
        steps = split_rollouts(rollouts, TOKENIZER, "line")
        rollouts_ref = build(
            "label_rollouts",
            number,
            [problems_ref],
            {"rollouts": rollouts, "checked": checked, "steps": steps},
            sampling={"temperature": 1.0, "top_p": 1.0},
        )
        completions, labels = make_labels(rollouts, checked, steps, number)
        labels_ref = build(
            "step_labels",
            number,
            [problems_ref, rollouts_ref],
            {"completions": completions, "step_labels": labels},
            receipt={
                "solutions": rollouts.height,
                "completions_sampled": completions.height,
                "tokens_sampled": int(completions["n_tokens"].sum()),
            },
            labelling={"schedule": "brute", "completions": COMPLETIONS},
        )
        rows = build_prm_rows(rollouts, steps, labels, problems, max_length=500).frame
        rows_ref = build("prm_rows", number, [problems_ref, rollouts_ref, labels_ref], {"prm_dataset": rows})
        mixed = mix_replay(rows, history, fraction=0.25, seed=1, eval_problem_ids=[])
        build("prm_dataset", number, [problems_ref, rows_ref, *refs["prm_rows"][:number]], {"prm_dataset": mixed.frame})
        history[number] = rows
        held_out, held_checked = make_rollouts(problems.filter(pl.col("split") == "eval"), number)
        held_steps = split_rollouts(held_out, TOKENIZER, "line")
        evaluated = build(
            "evaluate_rollouts",
            number,
            [problems_ref],
            {"rollouts": held_out, "checked": held_checked, "steps": held_steps},
        )
        build("step_scores", number, [evaluated], {"step_scores": make_scores(held_steps, held_checked, number)})
        figures = [
            {
                "round": number,
                "subject": "policy",
                "subject_id": f"policy-{number}",
                "metric": "accuracy",
                "value": 0.5 + 0.1 * number,
                "standard_error": 0.05,
                "n": 1,
            }
        ]
        build("policy_evaluation", number, [evaluated], {"evaluations": from_rows(figures, "evaluations")})
    return refs
