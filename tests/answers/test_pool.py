"""Workers: killed at the limit, replaced, gone with their parent; used from threads, forks and any script."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_pipeline.answers import check, check_many
from grpo_pipeline.answers.pool import Pool

ROOT = Path(__file__).resolve().parents[2]
HALF = ("\\frac{\\pi}{4}", "\\int_0^1 \\frac{1}{1+x^2} dx")  # needs sympy
HARD = ("1", "\\int_0^1 \\sin(\\cos(e^{x^x})) \\ln(1+x^{\\sin x}) dx")  # sympy looks for a closed form, long


@pytest.fixture(scope="module")
def pool():
    pool = Pool(1)
    yield pool
    pool.close()


def test_a_worker_compares(pool):
    assert pool.compare(*HALF, 20).verdict == "correct"
    assert pool.compare("1", HALF[1], 20).verdict == "wrong"


def test_a_worker_over_its_limit_is_killed_and_replaced(pool):
    pool.compare(*HALF, 20)
    before = {worker.process.pid for worker in pool.everyone}
    started = time.monotonic()
    found = pool.compare(*HARD, 0.3)
    assert (found.verdict, found.reason) == ("timeout", "time_limit")
    assert time.monotonic() - started < 3
    assert pool.compare(*HALF, 20).verdict == "correct"
    after = {worker.process.pid for worker in pool.everyone}
    assert before.isdisjoint(after)
    assert not any(alive(pid) for pid in before)


def test_a_worker_that_died_is_reported_and_replaced(pool):
    pool.compare(*HALF, 20)
    for worker in list(pool.everyone):
        worker.process.kill()
        worker.process.wait()
    found = pool.compare(*HALF, 20)
    assert (found.verdict, found.reason) == ("timeout", "worker_died")
    assert pool.compare(*HALF, 20).verdict == "correct"


def test_threads_share_the_pool():
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda k: check("1", "2" if k % 2 else "1", "answer").verdict, range(40)))
    assert found == ["correct", "wrong"] * 20
    box = []
    thread = threading.Thread(target=lambda: box.append(check(*HALF, "answer", time_limit=20).verdict))
    thread.start()
    thread.join()
    assert box == ["correct"]


def test_a_forked_child_starts_its_own_workers():
    assert check(*HALF, "answer", time_limit=20).verdict == "correct"
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    child = context.Process(target=lambda: sender.send(check(*HALF, "answer", time_limit=20).verdict))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == "correct"
    child.join(20)
    assert check(*HALF, "answer", time_limit=20).verdict == "correct"


def test_a_script_without_main_guard_runs_once_and_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import threading
            from grpo_pipeline.answers import check
            from grpo_pipeline.answers.pool import shared_pool
            print("once")
            go = lambda: print(check({HALF[0]!r}, {HALF[1]!r}, "answer", time_limit=20).verdict)
            thread = threading.Thread(target=go)
            thread.start(); thread.join()
            print(*[w.process.pid for w in shared_pool().everyone])
            import os; os._exit(0)  # as if it were killed: nothing is cleaned up
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-u", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    once, verdict, pids = done.stdout.splitlines()
    assert (once, verdict) == ("once", "correct"), done.stderr
    deadline = time.monotonic() + 10
    while any(alive(int(pid)) for pid in pids.split()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(int(pid)) for pid in pids.split())


def test_check_many_keeps_order_and_uses_workers():
    golds = ["1", "\\frac{\\pi}{4}", "2", "\\frac{\\pi}{4}", ""]
    texts = ["1", HALF[1], "3", HALF[1], "1"]
    found = check_many(golds, texts, "answer", workers=1, time_limit=20)
    assert [c.verdict for c in found] == ["correct", "correct", "wrong", "correct", "bad_gold"]
    assert check_many([], []) == []


def test_check_many_refuses_columns_that_do_not_match():
    with pytest.raises(ValueError, match="not the same number"):
        check_many(["1"], [])
    with pytest.raises(ValueError, match="unknown mode"):
        check_many(["1"], ["1"], ["boxed"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
