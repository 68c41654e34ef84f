"""A training killed with SIGKILL at a random moment and started again ends with the same weights, bit for bit.

`test_resume.py` stops at every kind of step by an exception; here the kernel does it, in the middle of anything.
"""

import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.training.toy_policies import save_policy

ROOT = Path(__file__).parents[2]
KILLS = 3

PROGRAM = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from grpo_pipeline import rollouts
    from grpo_pipeline.config import ModelConfig, RewardModelConfig, TrainingConfig
    from grpo_pipeline.training import exploration
    from grpo_pipeline.training.policy import train_policy
    from grpo_pipeline.training.reward_model import train_reward_model
    from tests.training.test_resume import configuration, prm_rows
    from tests.training.toy_policies import make_problems, parity_checker

    policy = Path(sys.argv[1])

    def check(frame, problems):
        return rollouts.check_rollouts(frame, problems, checker=parity_checker, checker_version="parity")

    exploration.check_rollouts = check

    def on_step(number, frames):
        with (folder / "steps").open("a") as log:
            log.write(f"{number} {time.monotonic()}\\n")

    def train():
        if method == "prm":
            return train_reward_model(
                dataset=prm_rows(), model_dir=policy, out_dir=folder / "out", workdir=folder / "work",
                config=RewardModelConfig.model_validate({"batch_size": 3, "epochs": 2, "optimizer": {"lr": 1e-2}}),
                training=TrainingConfig.model_validate({"checkpoint_every": 1, "tokens_per_microbatch": 64}),
                seed=5, model=ModelConfig.model_validate({"device": "cpu"}), on_step=on_step,
            )
        return train_policy(
            model_dir=policy, out_dir=folder / "out", workdir=folder / "work", problems=make_problems(),
            config=configuration(method, **({"updates_per_step": 2} if method in ("grpo", "ppo") else {})),
            round=1, seed=7, demonstrations=make_problems(), on_step=on_step,
        )

    # Import once, then fork a trainer for each line on standard input.
    for line in sys.stdin:
        method, _, folder = line.strip().partition(" ")
        folder = Path(folder)
        folder.mkdir(exist_ok=True)
        child = os.fork()
        if child == 0:
            train()
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
""")


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("policy"))


class Trainer:
    """Starts trainings in child processes of its own."""

    def __init__(self, policy):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(policy)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, method, folder):
        self.server.stdin.write(f"{method} {folder}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def status(self):
        return int(self.server.stdout.readline())

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


def steps(folder):
    """(step, when it was done) of every step, in the order done."""
    log = folder / "steps"
    lines = [line.split() for line in log.read_text().split("\n")[:-1]] if log.exists() else []
    return [(int(number), float(when)) for number, when in lines]


@pytest.fixture(scope="module")
def trainer(policy_dir):
    trainer = Trainer(policy_dir)
    yield trainer
    trainer.close()


@pytest.mark.parametrize(
    "method",
    ["grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("prm", "sft", "ppo"))],
)
def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(tmp_path, policy_dir, trainer, method):
    rng = random.Random(method)
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    trainer.start(method, quiet)
    assert trainer.status() == 0
    times = [when for _, when in steps(quiet)]
    a_step = statistics.median(after - before for before, after in itertools.pairwise(times))
    kills = 0
    for _ in range(50):
        before = len(steps(killed))
        child = trainer.start(method, killed)
        if kills < KILLS:
            # One or two steps further, at no particular point of the next one.
            wanted = before + rng.randint(1, 2)
            deadline = time.monotonic() + 60
            while len(steps(killed)) < wanted and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, a_step))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        status = trainer.status()
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        kills += 1
    assert kills >= 1
    ours, theirs = (load_file(folder / "out/model.safetensors") for folder in (killed, quiet))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    start = load_file(policy_dir / "model.safetensors")
    assert any((ours[name] != start[name]).any() for name in ours.keys() & start.keys())
    assert {step for step, _ in steps(killed)} == {step for step, _ in steps(quiet)}
    assert len(steps(killed)) >= len(steps(quiet))
