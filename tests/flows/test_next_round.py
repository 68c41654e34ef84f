"""Scheduled rounds: the ones that `iterate_rl` would make, one at a time, decided by the store alone."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from flows.next_round import next_round
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages import loop, schedule
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.history import newest_round, rounds_up_to
from grpo_pipeline.stages.run import run_root

STAGES = Stages()
ROUND = partial(loop.rl_round, STAGES)


def fingerprints(one):
    return [artifact.fingerprint for artifact in one.artifacts()]


@pytest.fixture
def grown(micro, finished, tmp_path):
    """A copy of the finished run, at another place, as a schedule finds it there."""
    shutil.copytree(run_root(micro), tmp_path / "runs" / micro.name)
    return micro.model_copy(update={"root": str(tmp_path / "runs")})


def without_round(config, number):
    """Take away what round `number` made, as if it had not been."""
    for folder in Path(run_root(config)).glob(f"artifacts/*-r{number}-*"):
        shutil.rmtree(folder)


def never(*_):
    raise AssertionError("no round was to be made")


def test_the_next_round_is_the_one_that_the_loop_would_make(grown, finished):
    without_round(grown, 2)
    without_round(grown, 1)
    made = next_round(grown.model_copy(update={"rounds": 0}))
    assert made.number == 1
    assert fingerprints(made) == fingerprints(finished[1])
    assert made.record.fingerprint == finished[1].record.fingerprint
    made = next_round(grown)
    assert (made.number, fingerprints(made)) == (2, fingerprints(finished[2]))
    assert [fingerprints(one) for one in rounds_up_to(grown, made)] == [fingerprints(one) for one in finished]
    assert made.labelled.dataset.read("prm_dataset").equals(finished[2].labelled.dataset.read("prm_dataset"))
    summary = Path(run_root(grown), "summary.json").read_text()
    assert '"round": 2' in summary


def test_a_run_at_another_place_goes_on_with_its_own_files(grown, finished):
    newest = newest_round(grown)
    assert newest.number == 2
    assert newest.policy.folder.is_relative_to(run_root(grown))
    assert all(str(artifact).startswith(run_root(grown)) for artifact in newest.artifacts())
    assert fingerprints(newest) == fingerprints(finished[2])


def test_no_round_yet(micro, tmp_path):
    assert newest_round(micro.model_copy(update={"root": str(tmp_path)})) is None


def test_two_at_once_exclude_each_other_and_the_dead_hold_nothing(grown):
    program = f"""
        import os
        from grpo_pipeline.config import RunConfig
        from grpo_pipeline.stages import schedule
        config = RunConfig.model_validate_json({grown.model_dump_json()!r})
        with schedule._alone(config) as alone:
            print(alone, flush=True)
            input()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as other:
        assert other.stdout.readline() == "True\n"
        outcome = schedule.next_round(STAGES, grown, never)
        assert outcome.made is None
        assert "another run is making the next round" in outcome.message
        other.send_signal(signal.SIGKILL)
        other.wait()
    with schedule._alone(grown) as alone:
        assert alone


def test_a_late_run_that_was_overtaken_says_so_and_ends(grown):
    newest = newest_round(grown)
    finished = datetime.fromisoformat(newest.record.manifest().created)
    outcome = schedule.next_round(STAGES, grown, never, due=finished - timedelta(seconds=1))
    assert outcome.made is None
    assert outcome.message.startswith("overtaken: round 2 of")

    asked = []

    def make(config, number, problems, previous):
        asked.append((number, previous.number))
        return previous

    assert schedule.next_round(STAGES, grown, make, due=datetime.now(UTC)).made is not None
    assert asked == [(3, 2)]


def test_a_flow_that_was_overtaken_completes_as_skipped(grown):
    with schedule._alone(grown):
        state = next_round(grown, return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Skipped")
    assert "this one ends" in state.message


def test_two_newest_rounds_are_not_guessed_between(grown):
    another = grown.model_copy(update={"rounds": 2, "evaluation": grown.evaluation.model_copy(update={"samples": 3})})
    loop.iterate_rl(STAGES, another, ROUND)
    with pytest.raises(UserError, match="round 2 is there more than once"):
        newest_round(grown)


def test_other_problems_are_refused(grown):
    other = grown.model_copy(update={"problems": grown.problems.model_copy(update={"count": 20})})
    with pytest.raises(UserError, match="on other problems"):
        schedule.next_round(STAGES, other, never)


def test_another_kind_of_reward_model_is_refused(grown):
    other = grown.model_copy(update={"reward_model": grown.reward_model.model_copy(update={"kind": "orm"})})
    with pytest.raises(UserError, match=r"with reward_model.kind = 'prm', whose model the next one goes on from"):
        schedule.next_round(STAGES, other, never)
