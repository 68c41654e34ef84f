"""The ledger: durable, shared, and asked before anything is sampled."""

import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.ledger import FILE, WORKERS, Draw, Ledger, PrefixKey, sampling_hash
from tests.labelling.scripted import Check, ScriptedEngine, check_many, make_world, random_chances, random_world

KEY = PrefixKey("model", "prefix", "sampling")
SAMPLING = SamplingConfig(max_tokens=400)
ROOT = Path(__file__).resolve().parents[2]


def draw(index, text="t"):
    return Draw(index, "r", "p", 0, 3, text, "stop", 7, "1", "correct", "1", "v")


def label(world, ledger, seed=5, n=4, checker=check_many, version="v1", **config):
    engine = ScriptedEngine(random_chances(9))
    config = LabellingConfig(completions=n, max_tokens=60, **config)
    result = label_steps(
        *world.label_args(), engine, config, SAMPLING,
        seed=seed, ledger=ledger, checker=checker, checker_version=version,
    )  # fmt: skip
    return result, engine.calls


def test_what_was_added_is_found_by_key_and_range(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(KEY, [draw(0), draw(2), draw(5)])
        assert [d.index for d in ledger.find(KEY, 0, 5)] == [0, 2]
        assert ledger.find(KEY, 2, 6) == [draw(2), draw(5)]
        for other in (
            PrefixKey("x", "prefix", "sampling"),
            PrefixKey("model", "x", "sampling"),
            PrefixKey("model", "prefix", "x"),
        ):
            assert ledger.find(other, 0, 9) == []


def test_a_draw_is_never_replaced(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(KEY, [draw(0, "first")])
        ledger.add(KEY, [draw(0, "second"), draw(1, "second")])
        assert [d.text for d in ledger.find(KEY, 0, 9)] == ["first", "second"]


def test_sampling_hash_tells_all_parameters_apart():
    base = SamplingParams(1.0, 1.0, 10, ("a",))
    others = [
        SamplingParams(0.9, 1.0, 10, ("a",)),
        SamplingParams(1.0, 0.9, 10, ("a",)),
        SamplingParams(1.0, 1.0, 11, ("a",)),
        SamplingParams(1.0, 1.0, 10),
    ]
    assert len({sampling_hash(s) for s in [base, *others]}) == 5
    assert sampling_hash(SamplingParams(1, 1, 10, ("a",))) == sampling_hash(base)


def test_second_run_samples_nothing_and_gives_the_same(tmp_path):
    world = random_world(2, 20)
    with Ledger(tmp_path / "l") as ledger:
        first, calls = label(world, ledger)
        assert len(ledger) == calls == first.completions.height
    with Ledger(tmp_path / "l") as ledger:
        second, calls = label(world, ledger)
    assert calls == 0
    assert second.step_labels.equals(first.step_labels)
    assert second.completions.equals(first.completions)
    assert second.receipt["completions_reused"] == first.receipt["completions_sampled"]
    assert second.receipt["tokens_reused"] == first.receipt["tokens_sampled"]


def test_larger_n_and_another_schedule_cost_only_what_is_missing(tmp_path):
    world = random_world(2, 20)
    plain, calls_8 = label(world, None, n=8)
    with Ledger(tmp_path / "l") as ledger:
        _, calls_4 = label(world, ledger, n=4)
        more, calls = label(world, ledger, n=8)
        assert calls_4 + calls == calls_8
        assert more.step_labels.equals(plain.step_labels)
        assert more.completions.equals(plain.completions)
        _, calls = label(world, ledger, n=8, schedule="closure", truncated="exclude")
        assert calls == 0


def test_another_checker_version_checks_again_without_sampling(tmp_path):
    world = random_world(2, 20)
    with Ledger(tmp_path / "l") as ledger:
        label(world, ledger)
        result, calls = label(world, ledger, checker=lambda g, t: [Check("correct", "1")] * len(t), version="v2")
        assert calls == 0
        sampled = result.step_labels.filter(result.step_labels["label_source"] == "sampled")
        assert (sampled["n_correct"] + sampled["n_truncated"]).to_list() == [4] * sampled.height
        # And what the second version said is what is kept.
        again, _ = label(world, ledger, checker=lambda g, t: pytest.fail("checked again"), version="v2")
        assert again.step_labels.equals(result.step_labels)


def test_frames_stream_every_checked_completion(tmp_path):
    world = random_world(2, 20)
    with Ledger(tmp_path / "l") as ledger:
        result, _ = label(world, ledger)
        frames = list(ledger.frames(rows=7))
        assert max(frame.height for frame in frames) <= 7
        rows = [row for frame in frames for row in frame.rows()]
        assert sorted(rows, key=str) == sorted(result.completions.rows(), key=str)


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    for name in ("noise", "newer"):
        (tmp_path / name).mkdir()
    (tmp_path / "noise" / FILE).write_text("no database at all, but long enough to be looked at as one" * 20)
    with pytest.raises(UserError, match="cannot be used as a ledger"):
        Ledger(tmp_path / "noise")
    connection = sqlite3.connect(tmp_path / "newer" / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UserError, match="format 99"):
        Ledger(tmp_path / "newer")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot hold the ledger"):
        Ledger(tmp_path / "file")


CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.labelling import test_ledger as t
class Slow(t.ScriptedEngine):
    def _sample(self, prompt, seed, *args):
        time.sleep(0.002)
        with open(sys.argv[2], "a") as log:
            log.write(repr((prompt, seed)) + "\\n")
        return super()._sample(prompt, seed, *args)
t.ScriptedEngine = Slow
print("ready", flush=True)
sys.stdin.readline()
with t.Ledger(Path(sys.argv[1])) as ledger:
    result, _ = t.label(t.random_world(4, 60), ledger)
result.step_labels.write_parquet(sys.argv[2] + ".parquet")
"""


class Worker:
    """A process that labels into a ledger, and says in a file what it samples."""

    def __init__(self, ledger, log):
        self.log = log
        log.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(root=str(ROOT)), str(ledger), str(log)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def go(self):
        assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def sampled(self):
        return self.log.read_text().splitlines()

    def kill_after(self, samples):
        deadline = time.monotonic() + 60
        while len(self.sampled()) < samples:
            assert time.monotonic() < deadline
            assert self.process.poll() is None, "it was done before it could be killed"
            time.sleep(0.005)
        self.process.kill()
        assert self.wait() == -signal.SIGKILL

    def wait(self):
        self.process.communicate(timeout=60)
        return self.process.returncode


def undisturbed():
    """What a run alone gives, and how many samples it takes."""
    result, calls = label(random_world(4, 60), None)
    return result, calls


@pytest.mark.chaos
def test_sigkill_keeps_finished_requests_and_a_restart_samples_only_the_rest(tmp_path):
    path = tmp_path / "ledger"
    worker = Worker(path, tmp_path / "log")
    worker.go()
    worker.kill_after(50)
    # A tail that was torn while it was written: half of a frame after the last commit.
    with (path / f"{FILE}-wal").open("ab") as wal:
        wal.write(b"\x37\x7f" * 1000)

    alone, calls = undisturbed()
    with Ledger(path) as ledger:
        kept = len(ledger)
        # All but the request under way, of four samples, is there.
        assert len(worker.sampled()) - 4 <= kept < calls
        result, calls_after = label(random_world(4, 60), ledger)
    assert calls_after == calls - kept
    assert result.step_labels.equals(alone.step_labels)
    assert result.completions.equals(alone.completions)


@pytest.mark.chaos
def test_two_workers_at_once_sample_nothing_twice(tmp_path):
    workers = [Worker(tmp_path / "ledger", tmp_path / f"log{number}") for number in range(2)]
    for worker in workers:
        worker.go()
    assert [worker.wait() for worker in workers] == [0, 0]
    alone, calls = undisturbed()
    first, second = (worker.sampled() for worker in workers)
    assert len({*first, *second}) == len(first) + len(second) == calls
    for worker in workers:
        assert pl.read_parquet(f"{worker.log}.parquet").equals(alone.step_labels)


@pytest.mark.chaos
def test_a_worker_takes_over_what_a_killed_one_had_claimed(tmp_path):
    killed, heir = (Worker(tmp_path / "ledger", tmp_path / name) for name in ("killed", "heir"))
    killed.go()
    killed.kill_after(50)
    heir.go()
    assert heir.wait() == 0
    alone, calls = undisturbed()
    assert pl.read_parquet(f"{heir.log}.parquet").equals(alone.step_labels)
    # Only the request under way when it was killed, of four samples, was lost.
    both = [*killed.sampled(), *heir.sampled()]
    assert len(set(both)) == calls
    assert len(both) - calls <= 4
    assert list((tmp_path / "ledger" / WORKERS).iterdir()) == []


def test_a_claimed_prefix_is_another_claimants_only_when_given_up_or_left(tmp_path):
    other = PrefixKey("model", "prefix 2", "sampling")
    with Ledger(tmp_path) as ledger:
        first, second = ledger.new_claimant(), ledger.new_claimant()
        assert ledger.claim([KEY], first) == {KEY}
        assert ledger.claim([KEY, other], second) == {other}
        ledger.add(KEY, [draw(0)], first)
        assert ledger.claim([KEY], second) == {KEY}
        ledger.release([KEY, other], second)
        assert ledger.claim([KEY], first) == {KEY}
        with Ledger(tmp_path) as elsewhere:
            assert elsewhere.claim([KEY, other], elsewhere.new_claimant()) == {other}
        # It left without giving anything up.
        assert ledger.claim([other], first) == {other}


def test_one_question_with_two_gold_answers_is_sampled_once(tmp_path):
    world = make_world([(1, ["a", "The answer is 1"], "stop"), (2, ["a", "The answer is 1"], "stop")])
    same_prompt = world.rollouts["prompt_token_ids"][0]
    world = replace(
        world,
        rollouts=world.rollouts.with_columns(prompt_token_ids=pl.Series([same_prompt] * 2)),
        steps=world.steps.with_columns(prefix_hash=pl.lit("same")),
    )
    with Ledger(tmp_path) as ledger:
        result, calls = label(world, ledger)
        assert calls == len(ledger) == 4
    assert (result.receipt["completions_sampled"], result.receipt["completions_reused"]) == (4, 4)


def test_a_failed_engine_gives_its_claims_up(tmp_path):
    class Failing(ScriptedEngine):
        def generate(self, requests, sampling, on_result=None):
            raise RuntimeError("no memory")

    config = LabellingConfig(completions=2, max_tokens=60)
    with Ledger(tmp_path) as ledger:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no memory"):
                label_steps(
                    *random_world(2).label_args(), Failing(random_chances(9)), config, SAMPLING,
                    seed=1, ledger=ledger, checker=check_many,
                )  # fmt: skip
        label(random_world(2), ledger)


OPENER = """
import sys, time
from pathlib import Path

from grpo_pipeline.labelling.ledger import Ledger

folder, turns = Path(sys.argv[1]), int(sys.argv[2])
print("up", flush=True)
begin = float(sys.stdin.readline())
for turn in range(turns):
    while time.time() < begin + turn * 0.05:
        pass
    with Ledger(folder / str(turn)):
        pass
"""


def test_a_new_ledger_may_be_opened_by_many_at_once(tmp_path):
    """SQLite does not wait for whoever else changes a new file to write-ahead mode."""
    command = [sys.executable, "-c", OPENER, str(tmp_path), "40"]
    openers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        for _ in range(2)
    ]
    for opener in openers:
        assert opener.stdout.readline() == b"up\n"
    begin = f"{time.time() + 0.2}\n".encode()
    for opener in openers:
        opener.stdin.write(begin)
        opener.stdin.flush()
    errors = [opener.communicate(timeout=120)[1].decode() for opener in openers]
    assert errors == [""] * 2
    assert [opener.returncode for opener in openers] == [0] * 2
