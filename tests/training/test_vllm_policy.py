"""vLLM samples while the trainer trains: each update reaches it, and both agree on log-probabilities."""

import numpy as np
import polars as pl
import pytest
import torch

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

from grpo_pipeline.config import parse_config  # noqa: E402
from grpo_pipeline.models.content import content_id  # noqa: E402
from grpo_pipeline.models.loading import load_policy, resolve_model  # noqa: E402
from grpo_pipeline.problems.loading import load_problems  # noqa: E402
from grpo_pipeline.training.policy import train_policy  # noqa: E402

LEARNING_RATE = 3e-3
"""High, so that one update moves log-probabilities by far more than the tolerance."""


def run(folder, steps, **training):
    config = parse_config(
        {
            "model": {"device": "cpu"},
            "problems": {"source": "synthetic", "count": 8, "eval_count": 2},
            "sampling": {"max_tokens": 48, "temperature": 0.9},
            "engine": {"kind": "vllm", "max_batch": 32},
            "training": {"checkpoint_every": 0, **training},
            "policy": {
                "method": "grpo",
                "steps": steps,
                "problems_per_step": 4,
                "rollouts_per_problem": 8,
                "updates_per_step": 2,
                "optimizer": {"lr": LEARNING_RATE},
                "grpo": {"supervision": "outcome", "importance_correction": "truncate"},
            },
        },
        "test",
    )
    start = resolve_model(config.model)
    seen = {}
    result = train_policy(
        model_dir=start,
        out_dir=folder / "out",
        workdir=folder / "work",
        problems=load_problems(config.problems, 0).frame.filter(pl.col("split") == "train"),
        config=config,
        round=1,
        seed=0,
        policy_id=content_id(start),
        on_step=seen.__setitem__,
    )
    return start, result, seen


def worst_difference(folder, rollouts, temperature=0.9):
    """Largest distance of the sampled log-probabilities from those of plain transformers with these weights."""
    model = load_policy(folder, dtype="float32", device="cpu")
    worst = 0.0
    for row in rollouts.iter_rows(named=True):
        prompt, response = list(row["prompt_token_ids"]), list(row["token_ids"])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
        expected = torch.log_softmax(logits, -1)[range(len(response)), response].numpy()
        worst = max(worst, float(np.abs(expected - np.array(row["logprobs"])).max()))
    return worst


@pytest.mark.parametrize("training", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_two_grpo_steps(tmp_path, training):
    start, once, _ = run(tmp_path / "once", 1, **training)
    _, result, seen = run(tmp_path / "twice", 2, **training)
    assert set(seen[1]["rollouts"]["policy_id"]) == {content_id(start)}
    assert set(seen[2]["rollouts"]["policy_id"]) == {f"{content_id(start)}@2"}  # two updates a step, one hand-over
    assert worst_difference(start, seen[1]["rollouts"]) < 1e-3
    after_one_step = tmp_path / "once" / "out"
    assert worst_difference(after_one_step, seen[2]["rollouts"]) < 1e-3
    assert worst_difference(start, seen[2]["rollouts"]) > 1e-2  # the old weights would have been found out
    metrics = result.metrics
    assert metrics["sampling/sampling_logp_difference/mean"].max() < 1e-3
    assert metrics["sampling/importance_sampling_ratio/mean"].to_list() == pytest.approx([1.0] * 4, abs=1e-3)
    assert result.counts["optimizer_steps"] == 4
    assert once.counts["optimizer_steps"] == 2
