"""Shards made by threads: the rows of one, nothing made twice, one opening for all."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from grpo_pipeline.config import EngineConfig, parse_config
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.loading import load_policy, load_tokenizer
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.stages import evaluation, labels, models, problems, rollouts
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import Store
from tests.flows.conftest import MICRO
from tests.store.conftest import make_checked
from tests.workers.makers import SPEC, Maker, build

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data" / "tiny"


def workers(count=2, **settings):
    return parse_config({"workers": {"count": count, **settings}}, "test").workers


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "log")


@pytest.mark.parametrize("count", [1, 2, 9])
def test_threads_give_the_rows_of_a_plain_build_and_open_once(tmp_path, maker, count):
    made = build(tmp_path / "threads", maker, workers(count))
    plain = Store(tmp_path / "plain").build(SPEC, 6, make_checked)
    assert made.read("checked").equals(plain.read("checked"))
    ours, theirs = made.manifest(), plain.manifest()
    assert (ours.counts, ours.tokens, ours.receipt) == (theirs.counts, theirs.tokens, theirs.receipt)
    assert [what for _, what in maker.lines()].count("open") == 1
    assert maker.lines()[-1][1] == "close"


def test_an_artifact_that_is_there_opens_nothing(tmp_path, maker):
    build(tmp_path, maker, workers())
    maker.log.unlink()
    assert build(tmp_path, maker, workers()).cached
    assert not maker.log.exists()


def test_two_shards_are_made_at_once(tmp_path, maker, monkeypatch):
    both = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(time, "sleep", lambda _: both.wait())  # a maker by itself would wait for the other in vain
    assert build(tmp_path, maker, workers(2)).manifest().tables["checked"].rows == 18


@pytest.mark.parametrize("count", [1, 3])
def test_after_an_error_only_what_is_missing_is_made(tmp_path, maker, count):
    with pytest.raises(UserError, match="shard 3 is refused"):
        build(tmp_path, replace(maker, refuse=3), workers(count))
    before = maker.made()
    assert 3 not in before
    build(tmp_path, maker, workers(count))
    assert maker.made() == [0, 1, 2, 3, 4, 5]
    assert len(before) >= 1


def test_a_killed_build_goes_on_where_it_was(tmp_path, maker):
    command = [sys.executable, "-m", "tests.workers.makers", str(tmp_path / "run"), str(maker.log), "0.3", "threads"]
    process = subprocess.Popen(command, cwd=ROOT)
    marker = tmp_path / "run" / "staging" / SPEC.fingerprint / "done" / "00001.json"
    limit = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {int(path.stem) for path in marker.parent.glob("[0-9]*.json")}  # no half-written one
    assert 6 > len(finished) >= 1
    maker.log.unlink()
    made = build(tmp_path / "run", maker, workers(2))
    assert maker.made() == sorted(set(range(6)) - finished)
    assert made.read("checked").equals(Store(tmp_path / "plain").build(SPEC, 6, make_checked).read("checked"))


@cache
def stages_of(root, count, task_runner="threads"):
    """Artifacts of the stages that are cut into shards, made by this many workers."""
    config = parse_config(MICRO | {"root": root, "workers": {"count": count, "task_runner": task_runner}}, "test")
    found, policy = problems.make_problems(config), models.base_policy(config)
    sampled = rollouts.sample_rollouts(config, "label", 0, found, policy)
    labelled = labels.label_steps(config, 0, found, sampled, policy)
    prm = RewardModel.from_policy(policy.folder, "prm", seed=1)
    folder = Path(root, "prm")
    prm.save(folder, parents=(), settings={})
    scored = evaluation.score_rollouts(config, 0, sampled, ModelRef(folder=folder, model_id="prm"))
    return {"rollouts": sampled, "labels": labelled, "scores": scored}


SHARDED_STAGES = pytest.mark.parametrize(
    ("stage", "tables"),
    [
        ("rollouts", ("rollouts", "checked", "steps")),
        ("labels", ("completions", "step_labels")),
        ("scores", ("step_scores",)),
    ],
)


def assert_same(one, two, tables):
    """Whoever made them: the same artifact, row for row, at the same cost but for time."""
    assert one.fingerprint == two.fingerprint
    for table in tables:
        assert one.read(table).height > 10
        assert one.read(table).equals(two.read(table)), table
    drop = {"seconds", "engine_seconds", "check_seconds"}
    receipts = [{k: v for k, v in ref.manifest().receipt.items() if k not in drop} for ref in (one, two)]
    assert json.dumps(receipts[0]) == json.dumps(receipts[1])


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return {count: str(tmp_path_factory.mktemp(f"threads-{count}")) for count in (1, 2)}


@SHARDED_STAGES
def test_two_threads_give_row_for_row_what_one_gives(roots, stage, tables):
    one, two = (stages_of(roots[count], count)[stage] for count in (1, 2))
    assert len(one.manifest().timings.shards) == 2  # 6 problems, 4 in a shard
    assert_same(one, two, tables)


def test_calls_of_a_local_engine_take_turns():
    model = load_policy(DATA, dtype="float32", device="cpu")
    engine = TransformersEngine(model, load_tokenizer(DATA), "tiny", EngineConfig())
    begun, going, inside = threading.Event(), threading.Event(), []

    def call(name, on_result=None):
        engine.generate([Request([1, 2, 3], [7])], SamplingParams(1.0, 1.0, 2), on_result)
        inside.append(name)

    def hold(*_):
        begun.set()
        going.wait(10)

    first = threading.Thread(target=call, args=("first", hold))
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=call, args=("second",))
    second.start()
    second.join(0.3)
    assert inside == []
    going.set()
    for thread in (first, second):
        thread.join(10)
    assert inside == ["first", "second"]
