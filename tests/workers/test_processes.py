"""Shards made by processes of this machine: the rows of one, nothing made twice, an end for all."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_pipeline.config import parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.processes.calls import ChildError
from grpo_pipeline.stages.evaluation import ScoreShards
from grpo_pipeline.stages.labels import LabelShards
from grpo_pipeline.stages.rollouts import RolloutShards
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.workers import processes, shard_queue
from grpo_pipeline.workers.shard_queue import ShardQueue
from tests.store.conftest import make_checked
from tests.workers.makers import SPEC, Maker, build
from tests.workers.test_threads import SHARDED_STAGES, assert_same, stages_of

ROOT = Path(__file__).parents[2]


def config(count=2, **settings):
    return parse_config({"workers": {"task_runner": "processes", "count": count}, **settings}, "test")


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "log", seconds=0.05)


def test_processes_give_the_rows_of_a_plain_build_and_each_opens_once(tmp_path, maker):
    made = build(tmp_path / "processes", replace(maker, seconds=0.5), config(2).workers)
    plain = Store(tmp_path / "plain").build(SPEC, 6, make_checked)
    assert made.read("checked").equals(plain.read("checked"))
    ours, theirs = made.manifest(), plain.manifest()
    assert (ours.counts, ours.tokens, ours.receipt) == (theirs.counts, theirs.tokens, theirs.receipt)
    who = {pid for pid, _ in maker.lines()}
    assert len(who) == 2
    assert str(os.getpid()) not in who
    assert maker.made() == [0, 1, 2, 3, 4, 5]
    for pid in who:  # each takes the next that waits, so that both have some
        mine = [what for one, what in maker.lines() if one == pid]
        assert (mine[0], mine[-1]) == ("open", "close")
        assert mine.count("open") == 1
        assert len(mine) > 2


def test_no_more_processes_than_shards_and_none_for_one_or_nothing(tmp_path, maker):
    build(tmp_path / "two", maker, config(5).workers, shards=2)
    assert len({pid for pid, _ in maker.lines()}) <= 2
    assert str(os.getpid()) not in {pid for pid, _ in maker.lines()}
    maker.log.unlink()
    build(tmp_path / "one", maker, config(5).workers, shards=1)
    assert maker.lines() == [(str(os.getpid()), what) for what in ("open", "0", "close")]
    maker.log.unlink()
    assert build(tmp_path / "one", maker, config(5).workers, shards=1).cached
    assert not maker.log.exists()


def test_after_an_error_only_what_is_missing_is_made(tmp_path, maker):
    with pytest.raises(UserError, match="shard 1 is refused"):
        build(tmp_path, replace(maker, refuse=1, seconds=0.3), config(2).workers, shards=12)
    before = maker.made()
    assert 1 not in before
    assert len(before) < 11  # the other process took no further one
    build(tmp_path, maker, config(2).workers, shards=12)
    assert maker.made() == list(range(12))


def test_a_killed_process_is_named_and_nothing_is_lost(tmp_path, maker):
    with_ledger = replace(maker, die=2, ledger_folder=tmp_path / "ledger")
    (tmp_path / "ledger").mkdir()
    with pytest.raises(ChildError, match="its process was killed by SIGKILL"):
        build(tmp_path / "store", with_ledger, config(2).workers)
    build(tmp_path / "store", with_ledger, config(2).workers)  # whose claim on the prefix is void
    assert maker.made() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow  # a server of its own imports torch
def test_a_build_and_its_processes_end_together(tmp_path, maker, waiting, living):
    build_elsewhere = "from tests.workers import makers; makers.main()"
    command = [sys.executable, "-c", build_elsewhere, str(tmp_path / "run"), str(maker.log), "0.5", "processes"]
    process = subprocess.Popen(command, cwd=ROOT)
    done = tmp_path / "run" / "staging" / SPEC.fingerprint / "done"
    waiting(lambda: len(list(done.glob("[0-9]*.json"))) >= 1, 90, "a shard")
    workers = [int(pid) for pid, _ in maker.lines()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    waiting(lambda: not living(workers), 10, "their end")
    finished = {int(path.stem) for path in done.glob("[0-9]*.json")}
    assert len(finished) < 6
    maker.log.unlink()
    made = build(tmp_path / "run", maker, config(2).workers)
    assert maker.made() == sorted(set(range(6)) - finished)
    assert made.read("checked").equals(Store(tmp_path / "plain").build(SPEC, 6, make_checked).read("checked"))


def test_ctrl_c_ends_the_processes(tmp_path, maker, waiting, living):
    """As in a stage without a child process of its own."""

    def interrupt():
        waiting(lambda: maker.log.exists() and len(maker.lines()) >= 2, 60, "two processes")
        os.kill(os.getpid(), signal.SIGINT)

    # Ignored from the start where tests run in the background of a script.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, replace(maker, seconds=30.0), config(2).workers)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not living([int(pid) for pid, _ in maker.lines()])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Artifacts of the stages that are cut into shards, made by one thread and by two processes."""
    one, two = (str(tmp_path_factory.mktemp(name)) for name in ("one", "two"))
    return stages_of(one, 1), stages_of(two, 2, "processes")


@SHARDED_STAGES
def test_two_processes_give_row_for_row_what_one_thread_gives(stores, stage, tables):
    one, two = (artifacts[stage] for artifacts in stores)
    assert_same(one, two, tables)


def test_every_shard_of_a_queue_is_taken_once(tmp_path):
    queue = ShardQueue(tmp_path / "queue.json")
    queue.fill(range(200))
    taken = []

    def work():
        while (shard := ShardQueue(queue.path).take()) is not None:
            taken.append(shard)
            queue.finish(shard)
            time.sleep(0)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(taken) == sorted(queue.finished()) == list(range(200))
    queue.fill([7, 8])
    queue.clear()
    assert queue.take() is None
    assert queue.finished() == []


@pytest.mark.parametrize(
    ("visible", "gpus", "places"),
    [
        (None, 1, ["0", "1", "2"]),
        ("4,5,6,7", 1, ["4", "5", "6"]),
        ("GPU-a,GPU-b,GPU-c", 1, ["GPU-a", "GPU-b", "GPU-c"]),
        (None, 2, ["0,1", "2,3", "4,5"]),
        (None, 0, [None, None, None]),  # a server has the model
    ],
)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_each_process_has_gpus_of_its_own(monkeypatch, maker, visible, gpus, places, device):
    gpus_are_there(monkeypatch, visible, 8)
    assert processes._places(replace(maker, device=device, gpus=gpus), 3) == places


@pytest.mark.parametrize(
    ("visible", "there", "gpus", "places"),
    [
        (None, 3, 1, ["0", "1", "2"]),
        ("0,1,7", 2, 1, ["0", "1"]),  # CUDA itself stops at the first that is not there
        (None, 1, 1, ["0"]),
        (None, 3, 2, ["0,1"]),
        (None, 1, 2, ["0"]),  # the engine says what it lacks
    ],
)
def test_there_are_no_more_processes_than_gpus_are_enough_for(monkeypatch, maker, caplog, visible, there, gpus, places):
    gpus_are_there(monkeypatch, visible, there)
    assert processes._places(replace(maker, device="auto", gpus=gpus), 4) == places
    assert f"takes {gpus} of the machine's GPUs for itself, and {there} are visible, enough for {len(places)}" in (
        caplog.text
    )


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_named_device_is_left_to_the_one_process(monkeypatch, maker, device):
    gpus_are_there(monkeypatch, None, 8)
    assert processes._places(replace(maker, device=device), 1) == [None]
    config(count=1, model={"device": device})
    if device != "cpu":
        with pytest.raises(UserError, match=r"each of the 2 takes GPUs of its own; set model.device = 'cuda' or"):
            config(model={"device": device})


def test_where_each_stages_model_is():
    settings = config(
        model={"device": "cuda"},
        labelling={"completer": {"path": "m", "device": "cpu"}},
        engine={"kind": "vllm", "tensor_parallel_size": 2},
    )
    ref = ArtifactRef(root="r", path="artifacts/a-r0-0123456789ab", fingerprint="f" * 64, stage="a", round=0, tables=())
    model = ModelRef(folder=Path("m"), model_id="m")
    sampling = RolloutShards(settings, "label", 0, ref, model, [])
    labelling = LabelShards(settings, 0, ref, ref, model, [], Path("ledger"))
    scoring = ScoreShards(settings, "step_scores", 0, ref, model, [])
    assert [maker.place for maker in (sampling, labelling, scoring)] == [("cuda", 2), ("cpu", 2), ("cuda", 1)]
    by_server = config(engine={"kind": "server", "base_url": "http://127.0.0.1:8000/v1"})
    assert RolloutShards(by_server, "label", 0, ref, model, []).place == ("auto", 0)
    assert ScoreShards(by_server, "step_scores", 0, ref, model, []).place == ("auto", 1)


def test_a_gpu_that_cuda_does_not_see_is_no_cpu(tmp_path, maker, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=GPU-x: CUDA sees no such GPU"):
        processes.make_shards("m:M", "{}", None, tmp_path / "queue.json", "GPU-x", 1)


def test_the_first_error_is_the_one_that_is_raised(tmp_path, maker, monkeypatch, caplog):
    """Whichever process it came from; the others are said."""

    def fail(function, kind, maker, staging, queue, gpus, threads):
        is_second = next(turns) == 1
        time.sleep(0.1 if is_second else 1.0)
        raise UserError("early" if is_second else "late")

    turns = itertools.count()
    monkeypatch.setattr(processes, "run_in_child", fail)
    with pytest.raises(UserError, match="early"):
        build(tmp_path, maker, config(2).workers)
    assert "another process that made shards failed too: late" in caplog.text


def gpus_are_there(monkeypatch, visible, count):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_what_killed_stages_left_behind_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_queue.tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "grpo-pipeline-shards-killed"
    killed.mkdir()
    (killed / "alive.lock").touch()
    (others := tmp_path / "grpo-pipeline-else").mkdir()
    with shard_queue.scratch_folder() as first:
        assert not killed.exists()
        with shard_queue.scratch_folder() as second:
            assert sorted(tmp_path.iterdir()) == sorted([first, second, others])
    assert list(tmp_path.iterdir()) == [others]


def test_shards_made_at_once_took_no_longer_than_the_clock(tmp_path, maker):
    started = time.monotonic()
    made = build(tmp_path, replace(maker, seconds=0.6), config(2).workers)
    elapsed = time.monotonic() - started
    timings = made.manifest().timings
    assert sum(timings.shards.values()) > 3.6
    assert 1.8 < timings.seconds <= elapsed
