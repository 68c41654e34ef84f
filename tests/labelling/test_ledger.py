"""The ledger: durable, shared, and asked before anything is sampled."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_pipeline.config import LabellingConfig, SamplingConfig
from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.label import label_steps
from grpo_pipeline.labelling.ledger import FILE, Draw, Ledger, PrefixKey, sampling_hash
from tests.labelling.scripted import Check, ScriptedEngine, check_many, random_chances, random_world

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
    def _sample(self, *args):
        time.sleep(0.002)
        return super()._sample(*args)
t.ScriptedEngine = Slow
with t.Ledger(Path({path!r})) as ledger:
    t.label(t.random_world(4, 60), ledger)
"""


@pytest.mark.chaos
def test_sigkill_keeps_finished_requests_and_a_restart_samples_only_the_rest(tmp_path):
    path = tmp_path / "ledger"
    child = subprocess.Popen([sys.executable, "-c", CHILD.format(root=str(ROOT), path=str(path))])
    deadline = time.monotonic() + 60
    kept = 0
    while kept < 40 and time.monotonic() < deadline:
        time.sleep(0.02)
        if (path / FILE).exists():
            try:
                with sqlite3.connect(f"file:{path / FILE}?mode=ro", uri=True) as reader:
                    kept = reader.execute("SELECT count(*) FROM completions").fetchone()[0]
            except sqlite3.OperationalError:
                continue
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    # A tail that was torn while it was written: half of a frame after the last commit.
    with (path / f"{FILE}-wal").open("ab") as wal:
        wal.write(b"\x37\x7f" * 1000)

    world = random_world(4, 60)
    undisturbed, calls = label(world, None)
    with Ledger(path) as ledger:
        kept_now = len(ledger)
        assert kept <= kept_now < calls
        result, calls_after = label(world, ledger)
    assert calls_after == calls - kept_now
    assert result.step_labels.equals(undisturbed.step_labels)
    assert result.completions.equals(undisturbed.completions)
