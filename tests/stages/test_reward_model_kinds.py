"""ORM, pairwise and token-form reward models through the whole main job, of plain stages."""

import json
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from grpo_pipeline.config import parse_config
from grpo_pipeline.models.loading import read_info
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.loop import iterate_rl, rl_round
from grpo_pipeline.stages.run import run_root
from tests.flows.conftest import MICRO


def run(tmp_path, reward_model, supervision="outcome", **policy):
    micro = MICRO | {
        "root": str(tmp_path),
        "rounds": 1,
        "labelling": MICRO["labelling"] | {"problems": 16, "rollouts": 4},
        "reward_model": MICRO["reward_model"] | reward_model,
        "policy": MICRO["policy"] | {"grpo": {"supervision": supervision}, **policy},
    }
    config = parse_config(micro, "test")
    return config, iterate_rl(Stages(), config, partial(rl_round, Stages()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "further"), [("orm", {}), ("pairwise", {}), ("pairwise", {"beta_rm": 0.1, "pairs_per_problem": 2})]
)
def test_reward_models_of_whole_solutions(tmp_path, kind, further):
    config, rounds = run(tmp_path, {"kind": kind, **further}, reward={"model_weight": 0.5})
    table = "prm_dataset" if kind == "orm" else "preference_pairs"
    held_out = set(rounds[0].problems.read("problems").filter(pl.col("split") == "eval")["problem_id"])
    for one in rounds:
        assert one.labelled.labels is None  # no completion was sampled: verdicts are all that is needed
        dataset = one.labelled.dataset.read(table)
        new = dataset.filter(~pl.col("is_replay"))
        assert set(new["round"]) == {one.number}
        assert dataset.height - new.height == (round(new.height / 9) if one.number else 0)
        assert not set(dataset["problem_id"]) & held_out
        assert read_info(one.reward_model.folder).kind == kind
        figures = {row["metric"]: row["value"] for row in one.measured.prm.read("evaluations").iter_rows(named=True)}
        assert {"solution_auc", "pair_accuracy", "bon4", "solution_auc_on_policy"} <= set(figures)
        best_of = one.measured.policy.read("evaluations").filter(metric="bon4")["value"][0]
        assert best_of == pytest.approx(figures["bon4_on_policy"])  # the same solutions and the same order
        if one.number:
            step = one.policy.artifact
            scores = step.read("solution_scores")
            assert scores["reward_model_id"].unique().to_list() == [rounds[one.number - 1].reward_model.model_id]
            rewards = step.read("advantages").join(scores, on="rollout_id")
            expected = rewards["reward_rule"] + 0.5 * rewards["score"]
            assert rewards["outcome_reward"].to_list() == pytest.approx(expected.to_list(), abs=1e-6)
            assert ("prm_outcome_gap" in step.read("metrics").columns) == (kind == "orm")
    summary = json.loads((Path(run_root(config)) / "summary.json").read_text())
    assert all(row["solution_auc"] is not None for row in summary["prms"])


@pytest.mark.slow
def test_a_prm_that_says_plus_and_minus(tmp_path):
    _, rounds = run(tmp_path, {"token_form": {"tag": "\n"}, "label": "hard"}, "process")
    model = RewardModel.load(rounds[-1].reward_model.folder, device="cpu")
    assert model.tokenizer.decode(list(model.plus_minus)) == "+-"
    assert model.tag is not None
    assert rounds[-1].policy.artifact.read("step_scores")["score"].is_between(0, 1).all()
