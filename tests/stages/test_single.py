"""`grpo-pipeline run`: the same artifacts as the loop's, and no more of them than asked for."""

import contextlib
import io
import re
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_pipeline.cli import app
from grpo_pipeline.config import parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.settings_text import toml_lines
from grpo_pipeline.stages import command, jobs, loop, schedule
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.single import LOOP_STAGES, run_single
from grpo_pipeline.store import Store
from grpo_pipeline.training.sampling_settings import check_sampling
from tests.flows.conftest import MICRO


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return parse_config(MICRO | {"root": str(tmp_path_factory.mktemp("single"))}, "the micro configuration")


def stages_in(config):
    return [(ref.stage, ref.round) for ref in Store(f"{config.root}/{config.name}").artifacts()]


def test_a_stage_is_made_with_what_it_needs_and_no_more(config):
    (labels,) = run_single(config, "label_steps", 0)
    assert labels.stage == "step_labels"
    assert stages_in(config) == [("label_rollouts", 0), ("problems", 0), ("step_labels", 0)]
    (greedy,) = run_single(config, "sample_rollouts", 0, "greedy")
    assert greedy.stage == "greedy_rollouts"
    made = {stage for stage, _ in stages_in(config)}
    assert "reward_model" in made
    assert "policy_evaluation" not in made


def test_both_scores_of_a_round_are_made(config):
    scores = run_single(config, "score_rollouts", 1)
    assert [ref.stage for ref in scores] == ["step_scores", "step_scores"]
    assert scores[0].fingerprint != scores[1].fingerprint
    assert ("policy_evaluation", 1) not in stages_in(config)


ORM = {"reward_model": {"kind": "orm"}, "policy": {"method": "rft"}}


@pytest.mark.parametrize(
    ("changes", "name", "round", "reason"),
    [
        ({}, "train_policy", 0, "a policy is trained from round 1 on"),
        ({}, "make_problems", 2, "the problems belong to round 0"),
        (ORM, "label_steps", 0, "it is a PRM's, and reward_model.kind = 'orm'"),
        (ORM, "build_prm_rows", 1, "it is a PRM's"),
        (ORM, "evaluate_prm", 1, "it is a PRM's"),
    ],
)
def test_a_stage_that_a_round_lacks_is_refused_before_anything_is_made(tmp_path, changes, name, round, reason):
    config = parse_config(MICRO | {"root": str(tmp_path)} | changes, "here")
    with pytest.raises(
        UserError, match=f"round {round} of this configuration has no stage {name.replace('_', '-')}: {reason}"
    ):
        run_single(config, name, round)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": {"reward": {"custom": {"nowhere:f": 1.0}}}}, "policy.reward.custom: cannot import 'nowhere'"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature = 0 is greedy"),
        ({"engine": {"kind": "server", "base_url": "http://127.0.0.1:9/v1"}}, "cannot sample while a policy trains"),
        ({"engine": {"kind": "vllm"}, "training": {"processes": 2}}, "'vllm' needs training.processes = 1"),
        ({"labelling": {"splitter": "nowhere:f"}}, "labelling.splitter: cannot import 'nowhere'"),
        ({"training": {"processes": 2, "launcher": "nowhere.yaml"}}, "training.launcher = 'nowhere.yaml'"),
    ],
)
def test_what_a_later_stage_needs_is_looked_for_first(tmp_path, changes, message):
    config = parse_config(MICRO | {"root": str(tmp_path)} | changes, "here")
    stages = Stages()
    for start in (
        lambda: loop.iterate_rl(stages, config, partial(loop.rl_round, stages)),
        lambda: schedule.next_round(stages, config, partial(loop.rl_round, stages)),
        lambda: jobs.train_policy(stages, config),
        lambda: run_single(config, "train_policy", 1),
    ):
        with pytest.raises(UserError, match=message):
            start()
    assert not (tmp_path / "micro" / "artifacts").exists()


def test_what_only_the_policys_training_needs_is_not_asked_of_others():
    check_sampling(parse_config({"policy": {"method": "sft"}, "sampling": {"temperature": 0}}, "here"), 0.0, 1)


def test_the_typed_names_are_the_stages():
    assert tuple(name.replace("-", "_") for name in command.STAGES) == LOOP_STAGES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "label"], "neither a job"),
        (["run", "iterate-rl", "--round", "1"], "belongs to stages"),
        (["run", "sample-rollouts", "--purpose", "fun"], "--purpose fun"),
    ],
)
def test_a_wrong_call_is_one_message(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_the_command_says_what_was_found_and_made(config, tmp_path):
    overrides = [f"--set={key}" for key in (f"root={tmp_path}", "name=typed", "problems.count=8")]
    overrides += ["--set=problems.source=synthetic", "--set=problems.eval_count=4"]
    for word in ("made ", "found"):
        result = CliRunner().invoke(app, ["run", "make-problems", *overrides])
        assert result.exit_code == 0, result.output
        (line,) = result.output.splitlines()
        assert line.startswith(f"{word}  {tmp_path}/typed/artifacts/problems-r0-")
        assert re.search(r"  \(round 0, \d+\.\d s, 12 rows\)$", line)


def test_a_stage_without_a_round_is_that_of_round_0_and_says_so(config):
    """Also in a run that has a later round: what a command makes must not depend on what was made before."""
    settings = config.model_copy(update={"name": "rounds"})
    run_single(settings, "sample_rollouts", 1)
    path = Path(config.root, "rounds.toml")
    path.write_text("\n".join(toml_lines(settings.model_dump(mode="json", exclude_none=True))))
    result = CliRunner().invoke(app, ["run", "sample-rollouts", "--config", str(path)], catch_exceptions=False)
    assert result.stderr == "sample-rollouts of round 0; --round N takes that of another\n"
    *_, last = result.stdout.splitlines()
    assert re.match(r"found  \S+/label_rollouts-r0-", last)
    asked = CliRunner().invoke(app, ["run", "sample-rollouts", "--round", "1", "--config", str(path)])
    assert asked.stderr == ""
    assert "/label_rollouts-r1-" in asked.stdout.splitlines()[-1]


def test_a_job_says_so_of_each_stage_as_it_ends(config):
    settings = parse_config(config.model_dump(mode="json") | {"name": "said"}, "here")
    printed = []
    for _ in range(2):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            command._run_job("build-prm-dataset", settings)
        printed.append(out.getvalue())
    lines = r"^(made |found)  \S+/artifacts/(\w+)-r0-\w+  \(round 0, [\d,.]+ s, [\d,]+ rows\)$"
    made, found = (re.findall(lines, text, re.MULTILINE) for text in printed)
    stages = ["problems", "label_rollouts", "step_labels", "prm_rows", "prm_dataset"]
    assert made == [("made ", stage) for stage in stages]
    assert found == [("found", stage) for stage in stages]
    assert "Labelling cost, round 0 (brute)" in printed[0]
