import os
import time
from pathlib import Path

import pytest


def wait_until(condition, seconds, what="it"):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {seconds} s"
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def waiting():
    return wait_until


@pytest.fixture
def living():
    def of(pids):
        return [pid for pid in pids if pid != os.getpid() and alive(pid)]

    return of
