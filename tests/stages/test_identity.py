"""What a stage's fingerprint counts: every setting that changes its rows, and none that does not."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_pipeline.config import load_config
from grpo_pipeline.stages import evaluation, labels, models, problems, rollouts
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import Store

PARENT = SimpleNamespace(fingerprint="f" * 64)
MODEL = ModelRef(folder=Path("model"), model_id="0123456789abcdef")

STAGES = {
    "problems": problems.make_problems,
    "rollouts": lambda config: rollouts.sample_rollouts(config, "label", 1, PARENT, MODEL),
    "step_labels": lambda config: labels.label_steps(config, 1, PARENT, PARENT, MODEL),
    "reward_model": lambda config: models.train_reward_model(config, 1, PARENT, MODEL),
    "policy": lambda config: models.train_policy(config, 1, PARENT, MODEL, MODEL),
    "step_scores": lambda config: evaluation.score_rollouts(config, 1, PARENT, MODEL),
}


class _Asked(Exception):
    """Raised in the store's place with the spec that a stage asks for."""


@pytest.fixture
def fingerprint(monkeypatch, tmp_path):
    def find(self, spec):
        raise _Asked(spec.fingerprint)

    monkeypatch.setattr(Store, "find", find)

    def of(stage, *overrides):
        with pytest.raises(_Asked) as asked:
            STAGES[stage](load_config(None, [f"root={tmp_path}", *overrides]))
        return str(asked.value)

    return of


@pytest.mark.parametrize(
    ("stage", "override"),
    [
        ("rollouts", "engine.max_model_len=64"),
        ("rollouts", "model.dtype=bfloat16"),
        ("rollouts", "seed=1"),
        ("step_labels", "engine.max_model_len=64"),
        ("step_labels", "labelling.completer.dtype=bfloat16"),
        ("reward_model", "model.dtype=bfloat16"),
        ("policy", "model.dtype=bfloat16"),
        ("policy", "reward_model.aggregate=last"),
        ("policy", "labelling.splitter=paragraph"),
        ("step_scores", "model.dtype=bfloat16"),
    ],
)
def test_a_setting_that_changes_rows_is_a_new_artifact(fingerprint, stage, override):
    assert fingerprint(stage, override) != fingerprint(stage)


@pytest.mark.parametrize(
    ("stage", "override"),
    [
        ("rollouts", "engine.max_batch=3"),
        ("rollouts", "labelling.completions=3"),
        ("step_labels", "model.device=cpu"),
        ("reward_model", "training.checkpoint_every=3"),
        ("reward_model", "training.processes=2"),
        ("policy", "training.launcher=fsdp2"),
        ("policy", "training.report_to=['tensorboard']"),
        ("policy", "training.checkpoint_every=3"),
        ("policy", "evaluation.samples=3"),
        ("step_scores", "policy.steps=3"),
        ("rollouts", "workers.count=3"),
        ("step_labels", "workers.task_runner=ray"),
        ("step_scores", "workers.task_runner=ray"),
    ],
)
def test_a_setting_that_changes_nothing_is_the_same_artifact(fingerprint, stage, override):
    assert fingerprint(stage, override) == fingerprint(stage)


@pytest.mark.parametrize("stage", ["rollouts", "step_labels", "policy"])
def test_other_checking_rules_are_a_new_artifact(fingerprint, stage, monkeypatch):
    before = fingerprint(stage)
    monkeypatch.setattr("grpo_pipeline.answers.CHECKER_VERSION", "another")
    assert fingerprint(stage) != before


def test_an_edited_file_in_a_source_folder_is_a_new_artifact(fingerprint, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    before = fingerprint("problems", f"problems.source={folder}")
    assert fingerprint("problems", f"problems.source={folder}") == before
    (folder / "train.jsonl").write_text('{"question": "1 + 2?", "answer": "3"}\n')
    assert fingerprint("problems", f"problems.source={folder}") != before


@pytest.mark.parametrize(
    ("stage", "setting"),
    [
        ("rollouts", "labelling.splitter='my_functions:cut'"),
        ("policy", "labelling.splitter='my_functions:cut'"),
        ("policy", "policy.reward.custom={'my_functions:cut' = 1.0}"),
    ],
)
def test_an_edited_function_of_the_user_is_a_new_artifact(fingerprint, tmp_path, monkeypatch, stage, setting):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_functions.py").write_text("def cut(text):\n    return [text]\n")
    before = fingerprint(stage, setting)
    assert fingerprint(stage, setting) == before != fingerprint(stage)
    (tmp_path / "my_functions.py").write_text("def cut(text):\n    return list(text)\n")
    assert fingerprint(stage, setting) != before
