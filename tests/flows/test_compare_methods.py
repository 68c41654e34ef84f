"""The comparison in micro: two variants of one seed, from the flow to the files that people read."""

from pathlib import Path

import polars as pl
import pytest

from flows.compare_methods import compare_methods
from grpo_pipeline.config import parse_config, variant_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.run import run_root
from grpo_pipeline.stages.variants import run_variant
from tests.flows.conftest import MICRO

COMPARISON = {
    "seeds": [1, 2],
    "variants": {
        "rft": {"title": "RFT", "policy": {"method": "rft"}},
        "iterative": {"title": "GRPO, 2 rounds", "rounds": 2},
    },
    "claims": [
        {"claim": "online beats offline", "better": "iterative", "worse": "rft"},
        {"claim": "a second round helps", "better": "iterative", "worse": "iterative@1", "metric": "pass4"},
    ],
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("comparison")
    changes = {"name": "compared", "root": str(root), "comparison": COMPARISON}
    return parse_config(MICRO | changes, "the micro comparison")


@pytest.fixture(scope="module")
def compared(prefect_server, config):
    return compare_methods(config)


@pytest.mark.slow
def test_every_variant_is_measured_on_every_seeds_problems(config, compared):
    table = compared.read("comparison").filter(pl.col("metric") == "accuracy")
    own = table.filter(pl.col("against") == "")
    assert own["variant"].to_list() == ["start", "rft", "iterative@1", "iterative"]
    assert set(own["n_seeds"]) == {2}
    assert set(own["n_problems"]) == {2 * config.problems.eval_count}
    pairs = table.filter(pl.col("against") != "").select("variant", "against").rows()
    assert pairs == [("iterative", "rft"), ("iterative", "iterative@1")]
    values = dict(own.select("variant", "value").iter_rows())
    difference = table.filter(pl.col("against") == "rft")["value"].item()
    assert difference == pytest.approx(values["iterative"] - values["rft"])


@pytest.mark.slow
def test_costs_tell_policy_tokens_from_label_tokens(compared):
    table = compared.read("comparison").filter(pl.col("against") == "")
    costs = {(r["variant"], r["metric"]): r["value"] for r in table.iter_rows(named=True)}
    assert costs["start", "policy_tokens"] == costs["start", "label_tokens"] == 0
    assert costs["rft", "label_tokens"] == 0
    assert 0 < costs["iterative@1", "label_tokens"] < costs["iterative", "label_tokens"]
    assert 0 < costs["iterative@1", "policy_tokens"] < costs["iterative", "policy_tokens"]
    assert costs["start", "kl"] == pytest.approx(0, abs=1e-6)  # a policy does not differ from itself
    assert costs["iterative", "kl"] > 0


@pytest.mark.slow
def test_steps_are_counted_on_over_the_rounds(compared):
    steps = compared.read("comparison_steps")
    assert set(steps["variant"]) == {"iterative"}
    accuracy = steps.filter(pl.col("metric") == "accuracy")
    assert accuracy["step"].to_list() == [1, 2]
    assert {"reward", "kl", "prm_score", "completions/mean_length"} <= set(steps["metric"])


@pytest.mark.slow
def test_the_report_lies_beside_the_artifacts(config, compared):
    folder = Path(run_root(config)) / "comparison"
    names = {"results.md", "comparison.csv", "steps.csv"}
    images = {"accuracy.png", "votes.png", "training.png", "reward_model.png"}
    assert {path.name for path in folder.iterdir()} == names | images
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in images)
    text = (folder / "results.md").read_text()
    assert "online beats offline: GRPO, 2 rounds less RFT" in text
    assert "GRPO, 2 rounds, after round 1" in text
    assert pl.read_csv(folder / "comparison.csv").height == compared.read("comparison").height


@pytest.mark.slow
def test_a_second_run_makes_nothing_anew(config, compared):
    manifests = {path: path.stat().st_mtime_ns for path in Path(run_root(config)).glob("artifacts/*/manifest.json")}
    again = compare_methods(config)
    assert again.fingerprint == compared.fingerprint
    assert again.cached
    found = {path: path.stat().st_mtime_ns for path in Path(run_root(config)).glob("artifacts/*/manifest.json")}
    assert found == manifests


@pytest.mark.slow
def test_the_second_rounds_reward_model_is_refreshed_and_its_reference_is_the_first_rounds_policy(
    prefect_server, config, compared
):
    one = variant_config(config, "iterative", 1)
    stages = Stages()
    trials = run_variant(stages, one, "iterative", stages.make_problems(one), stages.base_policy(one))
    first, second = trials[-1].policies
    assert [trial.variant for trial in trials] == ["iterative@1", "iterative"]
    assert first.artifact in trials[0].artifacts()
    parents = [parent.fingerprint for parent in second.artifact.manifest().parents]
    assert first.artifact.fingerprint in parents
    replayed = trials[-1].labelled[1].dataset.read("prm_dataset")
    assert set(replayed.filter("is_replay")["round"]) == {0}


def test_a_comparison_of_nothing_is_refused(prefect_server, config):
    empty = config.model_copy(update={"comparison": config.comparison.model_copy(update={"variants": {}})})
    with pytest.raises(UserError, match=r"configs/compare_methods\.toml"):
        compare_methods(empty)
