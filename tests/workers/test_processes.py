"""Shards made by processes of this machine: the rows of one, nothing made twice, an end for all."""

import json
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
from grpo_pipeline.store import Store
from grpo_pipeline.workers import processes
from grpo_pipeline.workers.shard_queue import ShardQueue
from tests.store.conftest import make_checked
from tests.workers.makers import SPEC, Maker, build
from tests.workers.test_threads import stages_of

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


def test_no_more_processes_than_shards_and_none_for_nothing(tmp_path, maker):
    build(tmp_path, maker, config(5).workers, shards=1)
    assert [what for _, what in maker.lines()] == ["open", "0", "close"]
    maker.log.unlink()
    assert build(tmp_path, maker, config(5).workers, shards=1).cached
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

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, replace(maker, seconds=30.0), config(2).workers)
    thread.join()
    assert not living([int(pid) for pid, _ in maker.lines()])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Artifacts of the stages that are cut into shards, made by one thread and by two processes."""
    one, two = (str(tmp_path_factory.mktemp(name)) for name in ("one", "two"))
    return stages_of(one, 1), stages_of(two, 2, "processes")


@pytest.mark.parametrize(
    ("stage", "tables"),
    [
        ("rollouts", ("rollouts", "checked", "steps")),
        ("labels", ("completions", "step_labels")),
        ("scores", ("step_scores",)),
    ],
)
def test_two_processes_give_row_for_row_what_one_thread_gives(stores, stage, tables):
    one, two = (artifacts[stage] for artifacts in stores)
    assert one.fingerprint == two.fingerprint
    for table in tables:
        assert one.read(table).height > 10
        assert one.read(table).equals(two.read(table)), table
    drop = {"seconds", "engine_seconds", "check_seconds"}
    receipts = [{k: v for k, v in ref.manifest().receipt.items() if k not in drop} for ref in (one, two)]
    assert json.dumps(receipts[0]) == json.dumps(receipts[1])


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
    ("visible", "engine", "places"),
    [
        (None, {}, ["0", "1", "2"]),
        ("4,5,6,7", {}, ["4", "5", "6"]),
        ("GPU-a,GPU-b,GPU-c", {}, ["GPU-a", "GPU-b", "GPU-c"]),
        (None, {"kind": "vllm", "tensor_parallel_size": 2}, ["0,1", "2,3", "4,5"]),
        (None, {"kind": "server"}, [None, None, None]),
    ],
)
def test_each_process_has_gpus_of_its_own(monkeypatch, visible, engine, places):
    gpus_are_there(monkeypatch, visible, 8)
    if engine.get("kind") == "server":
        engine = engine | {"base_url": "http://localhost:8000/v1"}
    assert processes._places(config(engine=engine), 3) == places


def test_fewer_gpus_than_processes_are_refused(monkeypatch):
    gpus_are_there(monkeypatch, "0,1,2", 3)
    with pytest.raises(UserError, match=r"takes 1 of the machine's GPUs for itself, and 3 are visible; set .* = 3"):
        processes._places(config(), 4)
    with pytest.raises(UserError, match=r"takes 2 .* set workers.count = 1"):
        processes._places(config(engine={"kind": "vllm", "tensor_parallel_size": 2}), 2)
    assert processes._places(config(model={"device": "cpu"}), 4) == [None] * 4
    with pytest.raises(UserError, match=r"each of the 2 takes GPUs of its own; set model.device = 'cuda' or 'auto'"):
        config(model={"device": "cuda:1"})


def gpus_are_there(monkeypatch, visible, count):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
