"""A build of 20 shards that is killed with SIGKILL, again and again, until it gets through."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from grpo_pipeline.store import Store
from grpo_pipeline.store.verify import verify

PROGRAM = """
    import os, sys, time
    root, log, here = sys.argv[1:]
    sys.path.insert(0, here)
    from conftest import checked_spec, make_checked
    from grpo_pipeline.store import Store
    def make(index):
        with open(log, "a") as file:
            file.write(f"{index}\\n")
        time.sleep(0.004)
        return make_checked(index)
    store = Store(root)
    # Import once, then fork a builder for each line on standard input, since the import costs a second.
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            store.build(checked_spec(), 20, make)
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
"""


def shards_begun(log):
    return log.read_text().count("\n") if log.exists() else 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("seed", "most_kills"),
    [(0, 4), pytest.param(1, 200, marks=pytest.mark.slow), pytest.param(2, 200, marks=pytest.mark.slow)],
)
def test_killed_builds_go_on_and_give_the_same_rows(tmp_path, helpers, seed, most_kills):
    rng = random.Random(seed)
    store, log = Store(tmp_path / "run"), tmp_path / "log"
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), store.root, str(log), str(Path(__file__).parent)]
    kills = 0
    # One thread each: a fork must not find another thread holding a lock.
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        for _ in range(200):
            server.stdin.write("go\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            # Let it begin up to five shards, then strike somewhere in the next few milliseconds.
            target = shards_begun(log) + rng.randint(0, 5)
            deadline = time.monotonic() + 10
            while shards_begun(log) < min(target, 20 + kills) and time.monotonic() < deadline:
                if store.find(helpers.spec()) is not None:
                    break
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.03))
            if kills < most_kills and store.find(helpers.spec()) is None:
                os.kill(child, signal.SIGKILL)
            status = int(server.stdout.readline())
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
            assert store.find(helpers.spec()) is None or verify(store.root) == []
        else:
            pytest.fail("never got through")
        server.stdin.close()
    assert kills >= 2
    ref = store.find(helpers.spec())
    calm = Store(tmp_path / "calm").build(helpers.spec(), 20, helpers.make)
    assert ref.read("checked").equals(calm.read("checked"))
    assert ref.manifest().tables == calm.manifest().tables
    assert verify(store.root) == []
    assert store.files.children("staging") == []
    made = Counter(int(line) for line in log.read_text().split())
    assert sorted(made) == list(range(20))
    # A kill costs the one shard that was being made, and nothing else.
    assert sum(made.values()) - 20 <= kills
