"""The main job in small: every stage, two rounds, and what must hold of what it leaves behind."""

import itertools
import json
from pathlib import Path

import polars as pl
import pytest
from datasets import Dataset

from flows.command import main
from flows.iterate_rl import iterate_rl
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.stages.run import run_root
from grpo_pipeline.tables import scan
from tests.report.reading import read_payload


def run_folder(config) -> Path:
    return Path(run_root(config))


def test_rounds_follow_on_each_other(finished):
    assert [one.number for one in finished] == [0, 1, 2]
    ids = [one.policy.model_id for one in finished]
    assert len(set(ids)) == 3
    for before, after in itertools.pairwise(finished):
        parents = {parent.fingerprint for parent in after.reward_model.artifact.manifest().parents}
        assert before.reward_model.artifact.fingerprint in parents  # the old RM is trained on, not a fresh one
        assert after.labelled.rollouts.read("rollouts")["policy_id"].unique().to_list() == [after.policy.model_id]


def test_held_out_problems_never_enter_training(micro, finished):
    problems = finished[0].problems.read("problems")
    held_out = set(problems.filter(pl.col("split") == "eval")["problem_id"])
    assert len(held_out) == micro.problems.eval_count
    for one in finished:
        trained_on = set(one.labelled.dataset.read("prm_dataset")["problem_id"])
        trained_on |= set(one.labelled.labels.read("completions")["problem_id"])
        if one.policy.artifact is not None:
            trained_on |= set(one.policy.artifact.read("rollouts")["problem_id"])
        assert trained_on
        assert not trained_on & held_out
        assert set(one.measured.rollouts.read("rollouts")["problem_id"]) == held_out


def test_replay_is_a_tenth_from_earlier_rounds(finished):
    for one in finished:
        frame = one.labelled.dataset.read("prm_dataset")
        new, old = (frame.filter(pl.col("is_replay") == flag) for flag in (False, True))
        expected = round(new.height / 9) if one.number else 0
        assert old.height == expected
        assert set(new["round"]) == {one.number}
        assert all(number < one.number for number in old["round"])
        receipt = one.labelled.dataset.manifest().receipt
        assert sum(receipt["replay_rows"].values()) == expected


def test_every_file_opens_with_polars_and_datasets(micro, finished, tmp_path):
    files = sorted(run_folder(micro).glob("artifacts/*/*/*.parquet"))
    # The others are made by import, by a judge, for reward models of whole solutions, and by a comparison.
    others = {"solutions", "pairs", "judgements", "solution_scores", "preference_pairs"}
    tables = set(TABLES) - others - {"problem_figures", "comparison", "comparison_steps"}
    assert {file.parent.name for file in files} == tables
    for table in sorted(tables):
        file = next(file for file in files if file.parent.name == table)
        frame = pl.read_parquet(file)
        dataset = Dataset.from_parquet(str(file), cache_dir=str(tmp_path))
        assert dataset.num_rows == frame.height
        assert dataset.column_names == frame.columns


def test_steps_join_to_the_text_and_end_inside_the_tokens(micro, finished):
    run = run_folder(micro)
    rollouts = scan("rollouts", run).collect()
    steps = scan("steps", run).collect().sort("rollout_id", "step_index")
    joined = steps.group_by("rollout_id", maintain_order=True).agg(
        pl.col("text").str.join(""), pl.col("token_end").max()
    )
    both = rollouts.join(joined, on="rollout_id", suffix="_steps")
    assert both.height == rollouts.filter(pl.col("text") != "").height
    assert both["text"].to_list() == both["text_steps"].to_list()
    assert (both["token_end"] < both["token_ids"].list.len()).all()


def test_summary_has_its_shape(micro, finished):
    summary = json.loads((run_folder(micro) / "summary.json").read_text())
    k = micro.evaluation.samples
    assert [row["round"] for row in summary["rounds"]] == [0, 1, 2]
    for row in summary["rounds"]:
        assert {"accuracy", "accuracy_se", "greedy", f"maj{k}", f"pass{k}", f"bon{k}"} <= set(row)
        assert 0 <= row["accuracy"] <= row[f"pass{k}"] <= 1
    for row in summary["prms"]:
        assert {"step_accuracy", "auc", "hard_label_accuracy", "soft_label_brier"} <= set(row)
        assert set(row["replay_rounds"]) <= {"0", "1"}
    names = [row["name"] for row in summary["stages"]]
    assert names.count("policy") == 2
    assert names.count("reward_model") == 3
    assert names.count("step_scores") == names.count("step_scores (labelled)") == 3
    assert len({(row["name"], row["round"]) for row in summary["stages"]}) == len(names)  # told apart
    assert all(row["rows"] > 0 for row in summary["stages"])


def test_the_report_lies_beside_the_summary_and_shows_every_round(micro, finished):
    payload = read_payload((run_folder(micro) / "report.html").read_text(encoding="utf-8"))
    charts = payload["charts"]
    assert {row["round"] for row in charts["figures"]} == {0, 1, 2}
    # Labelled solutions are scored too, so that label and score can be compared.
    for part in ("positions", "agreement", "scores", "calibration"):
        assert [row["round"] for row in charts[part]["rounds"]] == [0, 1, 2]
    assert charts["calibration"]["target"] == "truth"
    assert sorted(payload["solutions"]["sets"]) == ["held-out", "labelled", "training"]
    assert None not in payload["solutions"]["steps"]["truth"]


def test_a_second_run_makes_nothing_anew(micro, finished):
    manifests = {path: path.stat().st_mtime_ns for path in run_folder(micro).glob("artifacts/*/manifest.json")}
    again = iterate_rl(micro)
    made = [artifact.fingerprint for one in finished for artifact in one.artifacts()]
    assert [artifact.fingerprint for one in again for artifact in one.artifacts()] == made
    assert all(artifact.cached for one in again for artifact in one.artifacts())
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests
    assert len(list(run_folder(micro).glob("artifacts/*/manifest.json"))) == len(manifests)


def test_another_learning_rate_keeps_what_does_not_depend_on_it(micro, finished):
    changed = micro.model_copy(
        update={
            "rounds": 1,
            "policy": micro.policy.model_copy(
                update={"optimizer": micro.policy.optimizer.model_copy(update={"lr": 3e-4})}
            ),
        }
    )
    again = iterate_rl(changed)
    assert again[0].measured.policy.fingerprint == finished[0].measured.policy.fingerprint
    assert again[1].policy.artifact.fingerprint != finished[1].policy.artifact.fingerprint


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.path=no/such/folder", "no/such/folder"),
        ("problems.source=no/such/file.jsonl", "no/such/file.jsonl"),
        ("policy.steps=0", "policy.steps"),
    ],
)
def test_a_users_mistake_is_one_message(prefect_server, micro, override, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(iterate_rl, ["--set", f"root={tmp_path}", "--set", "name=mistake", "--set", override])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
