import io
import os
import pty
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from grpo_pipeline import progress as module
from grpo_pipeline.progress import progress

ROOT = Path(__file__).parents[1]
PROGRAM = """
    import time
    from grpo_pipeline.progress import progress
    with progress("labelling", 4, "steps") as bar:
        with progress("inner", None, "rollouts") as inner:
            inner.advance()
        for _ in range(4):
            time.sleep(0.15)
            bar.advance()
    print("done")
"""


def test_silent_where_nobody_watches():
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_a_terminal_shows_count_rate_and_time_left():
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=there, env=environment) as child:
        os.close(there)
        shown = b""
        while True:
            try:
                chunk = os.read(here, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
        assert child.stdout.read() == b"done\n"
    text = shown.decode()
    for part in ("labelling", "inner", "4/4", "steps/s", "0:00:00"):
        assert part in text, part


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_display_stays_until_the_last_bar_of_any_thread_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    opened, leave = threading.Event(), threading.Event()

    def other():
        with progress("other", 2, "shards") as bar:
            opened.set()
            leave.wait()
            bar.advance(2)

    thread = threading.Thread(target=other)
    with progress("first", 1, "shards"):
        thread.start()
        opened.wait()
    assert module._shown is not None
    leave.set()
    thread.join()
    assert module._shown is None


def test_errors_pass_through_and_close_the_display(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    try:
        with progress("first", 1, "shards"):
            raise KeyError("x")
    except KeyError:
        pass
    assert module._shown is None


def test_counts_and_the_share_that_is_done():
    assert module.counts() == ()
    assert module.fraction(module.counts()) is None
    with progress("label_steps, round 1", 4, "shards") as outer:
        outer.advance()
        with progress("completing prefixes", None, "completions") as inner:
            inner.advance(7)
            assert module.counts() == (
                module.Count("label_steps, round 1", "shards", 1, 4),
                module.Count("completing prefixes", "completions", 7, None),
            )
            assert module.fraction(module.counts()) == 0.25
        with progress("sampling rollouts", 60, "rollouts") as inner:
            inner.advance(30)
            assert module.fraction(module.counts()) == 1.5 / 4
            inner.advance(60)  # more than was expected is no more than all
            assert module.fraction(module.counts()) == 2 / 4
        outer.advance(3)
        assert module.fraction(module.counts()) == 1.0
    assert module.counts() == ()


def test_counts_of_a_child_follow_ones_own():
    of_child = (module.Count("grpo, round 1", "steps", 3, 10),)
    try:
        module.relay("child", of_child)
        with progress("policy, round 1", 1, "models"):
            assert module.counts()[1:] == of_child
            assert module.fraction(module.counts()) == 0.3
    finally:
        module.relay("child", ())
    assert module.counts() == ()


def test_children_at_the_same_work_have_one_count_between_them():
    with progress("labels", 4, "shards"):
        try:
            module.relay(1, [module.Count("sampling", "rollouts", 3, 10), module.Count("loading", "files", 1, None)])
            module.relay(2, [module.Count("sampling", "rollouts", 4, 10), module.Count("loading", "files", 1, 2)])
            assert module.counts()[1:] == (
                module.Count("sampling", "rollouts", 7, 20),
                module.Count("loading", "files", 2, None),
            )
            module.relay(1, ())
            assert module.counts()[1:] == (
                module.Count("sampling", "rollouts", 4, 10),
                module.Count("loading", "files", 1, 2),
            )
        finally:
            module.relay(1, ())
            module.relay(2, ())
    assert module.counts() == ()
