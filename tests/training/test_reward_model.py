import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_pipeline.config import ModelConfig, RewardModelConfig, TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.loading import read_info
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.training.reward_model import train_reward_model
from grpo_pipeline.training.reward_rows import epoch_batches, labelled_rows, pair_rows
from tests.training.toy_policies import save_policy

GOOD, BAD = 50, 60
"""Tokens that end good and bad steps: what the toy reward models have to find out."""


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("policy"))


def prm_rows(count=24, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        labels = [float(y) for y in rng.integers(0, 2, 3)]
        ids = [5 + i // 4, 6, 7]
        positions = []
        for label in labels:
            ids += [int(rng.integers(10, 40)), GOOD if label else BAD]
            positions.append(len(ids) - 1)
        rows.append(
            {
                "rollout_id": f"r{i}",
                "problem_id": f"p{i // 4}",
                "round": 0,
                "split": "train",
                "input_ids": ids,
                "step_positions": positions,
                "soft": labels,
                "hard": labels,
                "is_replay": False,
            }
        )
    return pl.DataFrame(rows)


def pairs(count=12):
    rng = np.random.default_rng(1)
    rows = []
    for i in range(count):
        good, bad = ([*(int(t) for t in rng.integers(10, 40, 2)), last] for last in (GOOD, BAD))
        rows.append(
            {"problem_id": f"p{i}", "prompt_token_ids": [5, 6], "chosen_token_ids": good, "rejected_token_ids": bad}
        )
    return pl.DataFrame(rows)


def train(tmp_path, folder, dataset, name="out", training=None, **config):
    settings = {"batch_size": 12, "epochs": 10, "optimizer": {"lr": 1e-2}, **config}
    return train_reward_model(
        dataset=dataset,
        model_dir=folder,
        out_dir=tmp_path / name,
        workdir=tmp_path / f"{name}-work",
        config=RewardModelConfig.model_validate(settings),
        training=TrainingConfig.model_validate({"checkpoint_every": 0, **(training or {})}),
        seed=0,
        model=ModelConfig.model_validate({"device": "cpu"}),
    )


def test_prm_learns_and_transformers_reads_it(tmp_path, policy_dir):
    result = train(tmp_path, policy_dir, prm_rows())
    assert result.metrics["accuracy"][-1] == 1.0
    assert result.metrics["loss"][-1] < 0.3 < result.metrics["loss"][0]
    assert result.counts == {"rows": 24, "unlabelled": 0, "too_long": 0, "tokens": 2160, "optimizer_steps": 20}
    row = prm_rows().row(0, named=True)
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        logits = plain(torch.tensor([row["input_ids"]])).logits[0, row["step_positions"], 0]
    assert ((logits > 0).float().tolist()) == row["hard"]
    assert read_info(tmp_path / "out").kind == "prm"


@pytest.mark.parametrize(
    "training", [{"packing": False}, {"tokens_per_microbatch": 40}, {"gradient_checkpointing": True}]
)
def test_the_way_it_is_run_does_not_change_what_is_learnt(tmp_path, policy_dir, training):
    expected = train(tmp_path, policy_dir, prm_rows(), "plain", epochs=2)
    got = train(tmp_path, policy_dir, prm_rows(), "other", training, epochs=2)
    assert got.metrics["loss"].to_list() == pytest.approx(expected.metrics["loss"].to_list(), abs=1e-5)


def test_refresh_goes_on_from_the_old_reward_model(tmp_path, policy_dir):
    first = train(tmp_path, policy_dir, prm_rows(), "first")
    second = train(tmp_path, tmp_path / "first", prm_rows(seed=1), "second", epochs=1)
    # A new head would start near log 2.
    assert second.metrics["loss"][0] < 0.3
    assert read_info(tmp_path / "second").parents == (first.model_id,)


def test_orm_reads_the_last_step_only(tmp_path, policy_dir):
    result = train(tmp_path, policy_dir, prm_rows(), kind="orm")
    assert result.metrics["accuracy"][-1] == 1.0
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    for row in prm_rows().head(6).iter_rows(named=True):
        with torch.no_grad():
            score = plain(torch.tensor([row["input_ids"]])).logits[0, 0]
        assert float(score > 0) == row["hard"][-1]


@pytest.mark.parametrize("tag", [None, "9"])
def test_token_form_learns_to_say_plus_and_minus(tmp_path, policy_dir, tag):
    """Math-Shepherd's form: the language model's own + and - logits, at step ends or at a tag behind them."""
    form = {"good": "+", "bad": "-", "tag": tag}
    result = train(tmp_path, policy_dir, prm_rows(), token_form=form, epochs=20)
    assert result.metrics["accuracy"][-1] == 1.0
    assert result.metrics["loss"][0] > 0.5
    row = prm_rows().row(0, named=True)
    tokenizer = RewardModel.load(tmp_path / "out", device="cpu").tokenizer
    plus, minus, nine = (tokenizer.encode(text)[0] for text in "+-9")
    ids, places = [], []
    for place, token in enumerate(row["input_ids"]):
        ids.append(token)
        if place in row["step_positions"]:
            ids += [nine] if tag else []
            places.append(len(ids) - 1)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()(torch.tensor([ids])).logits[0, places]
    assert (logits[:, plus] > logits[:, minus]).float().tolist() == row["hard"]
    refreshed = train(tmp_path, tmp_path / "out", prm_rows(seed=1), "again", token_form=form, epochs=1)
    assert refreshed.metrics["loss"][0] < 0.3
    with pytest.raises(UserError, match=r"a prm with tokens, but reward_model\.token_form asks for a scalar head"):
        train(tmp_path, tmp_path / "out", prm_rows(), "other")


@pytest.mark.parametrize("beta_rm", [0.0, 0.5])
def test_pairwise(tmp_path, policy_dir, beta_rm):
    result = train(tmp_path, policy_dir, pairs(), kind="pairwise", beta_rm=beta_rm, batch_size=5)
    assert result.metrics["accuracy"][-1] == 1.0
    assert ("nll" in result.metrics.columns) == (beta_rm > 0)
    if beta_rm:
        assert result.metrics["nll"][-1] < result.metrics["nll"][0]
    assert result.counts["optimizer_steps"] == 30
    assert RewardModel.load(tmp_path / "out", device="cpu").kind == "pairwise"


def test_lora_trains_adapters_and_head_and_saves_a_plain_model(tmp_path, policy_dir):
    result = train(tmp_path, policy_dir, prm_rows(), training={"lora": {"rank": 4}}, optimizer={"lr": 1e-2})
    assert result.metrics["accuracy"][-1] == 1.0
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    assert not any("lora" in name for name, _ in plain.named_parameters())
    row = prm_rows().row(0, named=True)
    with torch.no_grad():
        logits = plain(torch.tensor([row["input_ids"]])).logits[0, row["step_positions"], 0]
    assert ((logits > 0).float().tolist()) == row["hard"]


def test_rows_that_cannot_be_used_are_counted():
    frame = prm_rows(4).with_columns(
        soft=pl.Series([[None, None, None], [0.5, None, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    )
    config = RewardModelConfig.model_validate({"max_length": 9})
    data = labelled_rows(frame, config, None)
    assert data.counts == {"rows": 3, "unlabelled": 1, "too_long": 0}
    assert data.rows[0].read.tolist() == [4, 8]
    assert labelled_rows(frame, RewardModelConfig(), 9).counts == data.counts
    with pytest.raises(UserError, match="1 without label, 3 longer than 8 tokens"):
        labelled_rows(frame, config, 8)


def test_solutions_of_a_problem_share_its_prompt():
    data = labelled_rows(prm_rows(8), RewardModelConfig(), None)
    assert {row.n_prompt for row in data.rows} == {3}
    lone = labelled_rows(prm_rows(8)[:1], RewardModelConfig(), None)
    assert lone.rows[0].n_prompt == 0


def test_epochs_hold_every_unit_once_and_keep_problems_together():
    data = labelled_rows(prm_rows(), RewardModelConfig(), None)
    first, second = (epoch_batches(data, 8, 3, epoch) for epoch in (0, 1))
    assert sorted(unit for batch in first for unit in batch) == list(range(24))
    assert first != second
    assert first == epoch_batches(data, 8, 3, 0)
    assert all(len({data.problem[unit] for unit in batch}) == 2 for batch in first)


def test_evaluation_rows_never_enter_training():
    frame = prm_rows(4).with_columns(split=pl.Series(["train", "train", "eval", "train"]))
    with pytest.raises(ValueError, match="r2"):
        labelled_rows(frame, RewardModelConfig(), None)


def test_wrong_kinds_are_refused(tmp_path, policy_dir):
    train(tmp_path, policy_dir, prm_rows(), "prm", epochs=1)
    with pytest.raises(UserError, match=r"a prm model, but reward_model.kind is orm"):
        train(tmp_path, tmp_path / "prm", prm_rows(), "orm", kind="orm")
    with pytest.raises(UserError, match="build_pairs"):
        pair_rows(prm_rows(), RewardModelConfig.model_validate({"kind": "pairwise"}), None)
