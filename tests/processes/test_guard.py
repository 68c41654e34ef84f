"""The guard: marked processes are gone soon after their owner, however it ended."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from grpo_pipeline.processes.guard import ProcessGuard, marked_processes

OWNER = textwrap.dedent("""
    import subprocess, sys, time
    from grpo_pipeline.processes.guard import ProcessGuard
    guard = ProcessGuard(mark_environment={marked})
    up = "import time; print('up', flush=True); time.sleep(600)"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + up
    for code in (up, deaf):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True,
                                 env=None if {marked} else guard.environment)
        child.stdout.readline()
    print(guard.mark, flush=True)
    {end}
""")


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_die_with_a_killed_owner(number, marked):
    code = OWNER.format(marked=marked, end="time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        mark = owner.stdout.readline().strip()
        assert len(marked_processes(mark)) == 2
        owner.send_signal(number)
        owner.wait()
        wait_until(lambda: not marked_processes(mark), 30)


def test_processes_die_when_the_owner_exits_or_closes():
    for end in ("sys.exit(3)", "guard.close(); guard.close()"):
        done = subprocess.run(
            [sys.executable, "-c", OWNER.format(marked=True, end=end)], capture_output=True, text=True, timeout=60
        )
        mark = done.stdout.strip()
        wait_until(functools.partial(lambda mark: not marked_processes(mark), mark), 30)


def test_close_takes_the_mark_out_of_the_environment_and_spares_the_owner():
    with ProcessGuard(mark_environment=True) as guard:
        assert os.environ["GRPO_PIPELINE_PROCESSES"].split()[-1] == guard.mark
    assert "GRPO_PIPELINE_PROCESSES" not in os.environ
