"""A run that is stopped at any step and started again ends with the same weights, bit for bit (on the CPU)."""

import os

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from grpo_pipeline import rollouts
from grpo_pipeline.config import ModelConfig, RewardModelConfig, TrainingConfig, parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.training import exploration
from grpo_pipeline.training.checkpoints import save_checkpoint
from grpo_pipeline.training.policy import train_policy
from grpo_pipeline.training.reward_model import train_reward_model
from tests.training.toy_policies import make_problems, parity_checker, save_policy


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def _toy_checker(monkeypatch):
    def check(frame, problems):
        return rollouts.check_rollouts(frame, problems, checker=parity_checker, checker_version="parity")

    monkeypatch.setattr(exploration, "check_rollouts", check)


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("policy"))


def configuration(method, **policy):
    return parse_config(
        {
            "sampling": {"max_tokens": 10, "temperature": 0.9},
            "training": {"tokens_per_microbatch": 100, "checkpoint_every": 2},
            "policy": {
                "method": method,
                "steps": 5,
                "problems_per_step": 3,
                "rollouts_per_problem": 4,
                "epochs": 5,
                "optimizer": {"lr": 5e-3, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.01},
                "grpo": {"supervision": "outcome"},
                "ppo": {"critic_lr": 1e-2, "critic_warmup": 1, "ptx_weight": 0.1, "kl_target": 0.1},
                **policy,
            },
        },
        "test",
    )


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


def stopping(step, seen):
    def on_step(number, frames):
        seen.append((number, frames))
        if number == step:
            raise Killed

    return on_step


@pytest.mark.parametrize(
    ("method", "stop_at", "policy"),
    [
        ("sft", 3, {}),
        ("grpo", 3, {}),
        ("grpo", 4, {"updates_per_step": 2}),
        ("ppo", 3, {"updates_per_step": 2}),
        ("dpo", 3, {}),
    ],
)
def test_policy(tmp_path, policy_dir, method, stop_at, policy):
    def run(name, work, on_step=None):
        return train_policy(
            model_dir=policy_dir,
            out_dir=tmp_path / name,
            workdir=tmp_path / work,
            problems=make_problems(),
            config=configuration(method, **policy),
            round=1,
            seed=7,
            demonstrations=make_problems(),
            on_step=on_step,
        )

    whole = run("whole", "work0")
    seen = []
    with pytest.raises(Killed):
        run("resumed", "work1", stopping(stop_at, seen))
    resumed = run("resumed", "work1", lambda *step: seen.append(step))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "resumed"))
    assert not same(weights(tmp_path / "whole"), weights(policy_dir))
    assert resumed.policy_id == whole.policy_id
    timeless = [c for c in whole.metrics.columns if "time" not in c]
    assert resumed.metrics.select(timeless).equals(whole.metrics.select(timeless), null_equal=True)
    # Every step was handed over at least once, and a step that came twice came the same.
    assert {number for number, _ in seen} >= set(range(1, 6))
    if method in ("grpo", "ppo"):
        again = [frames["rollouts"] for number, frames in seen if number == stop_at]
        assert len(again) == 2 - (stop_at % 2 == 0 and stop_at < 4)
        assert again[0].equals(again[-1])


def test_metrics_of_several_steps_come_together_the_same_after_a_resume(tmp_path, policy_dir):
    """Rows come in blocks of their own numbers, whole even where a resume begins in the middle of one."""
    config = RewardModelConfig.model_validate({"batch_size": 3, "epochs": 4, "optimizer": {"lr": 1e-2}})

    def run(work, on_step, checkpoint_every):
        training = {"checkpoint_every": checkpoint_every, "tokens_per_microbatch": 64}
        return train_reward_model(
            dataset=prm_rows(),
            model_dir=policy_dir,
            out_dir=tmp_path / f"out-{work}",
            workdir=tmp_path / work,
            config=config,
            training=TrainingConfig.model_validate(training),
            seed=5,
            model=ModelConfig.model_validate({"device": "cpu"}),
            on_step=on_step,
            steps_at_once=5,
        )

    blocks = []
    whole = run("whole", lambda *step: blocks.append(step), 0)
    assert len(whole.metrics) % 5 != 0  # the last block is a short one
    assert [number for number, _ in blocks] == [*range(5, len(whole.metrics), 5), len(whole.metrics)]
    rows = pl.concat([frames["metrics"] for _, frames in blocks])
    assert rows.equals(whole.metrics)

    again = {}

    def stop(number, frames):
        again[number] = frames["metrics"]
        if number == 10:
            raise Killed

    with pytest.raises(Killed):
        run("killed", stop, 4)  # its newest checkpoint is that of step 8
    run("killed", lambda number, frames: again.__setitem__(number, frames["metrics"]), 3)
    timeless = [name for name in whole.metrics.columns if "time" not in name]
    assert pl.concat([again[number] for number in sorted(again)]).select(timeless).equals(rows.select(timeless))


@pytest.mark.parametrize("stop_at", [1, 3])
def test_prm(tmp_path, policy_dir, stop_at):
    config = RewardModelConfig.model_validate({"batch_size": 3, "epochs": 2, "optimizer": {"lr": 1e-2}})
    training = TrainingConfig.model_validate({"checkpoint_every": 1, "tokens_per_microbatch": 64})

    def run(name, work, on_step=None):
        return train_reward_model(
            dataset=prm_rows(),
            model_dir=policy_dir,
            out_dir=tmp_path / name,
            workdir=tmp_path / work,
            config=config,
            training=training,
            seed=5,
            model=ModelConfig.model_validate({"device": "cpu"}),
            on_step=on_step,
        )

    whole = run("whole", "work0")
    with pytest.raises(Killed):
        run("resumed", "work1", stopping(stop_at, []))
    resumed = run("resumed", "work1")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "resumed"))
    assert resumed.model_id == whole.model_id
    assert whole.counts["optimizer_steps"] == 6


def prm_rows(count=8):
    rows = [
        {
            "rollout_id": f"r{i}",
            "problem_id": f"p{i // 2}",
            "round": 0,
            "split": "train",
            "input_ids": [5 + i // 2, 6, 7, *range(20 + i, 26 + i)],
            "step_positions": [4, 8],
            "soft": [0.25 * (i % 5), None if i == 3 else 1.0],
            "hard": [float(i % 5 > 0), None if i == 3 else 1.0],
            "is_replay": False,
        }
        for i in range(count)
    ]
    return pl.DataFrame(rows)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, policy_dir):
    def run(seed, on_step=None):
        return train_policy(
            model_dir=policy_dir,
            out_dir=tmp_path / "out",
            workdir=tmp_path / "work",
            problems=make_problems(),
            config=configuration("sft"),
            round=1,
            seed=seed,
            demonstrations=make_problems(),
            on_step=on_step,
        )

    with pytest.raises(Killed):
        run(1, stopping(3, []))
    with pytest.raises(UserError, match="another configuration; delete the folder"):
        run(2)


def test_a_checkpoint_may_be_read_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        folder = save_checkpoint(tmp_path, 3, {"w": torch.zeros(2)}, {}, run="r")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"tensors.safetensors": 0o640, "state.json": 0o640}
