"""The labelling stage on the real vLLM: labels, the store, the prefix cache, and a stage that is killed."""

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

from grpo_pipeline.config import EngineConfig, ModelConfig, parse_config  # noqa: E402
from grpo_pipeline.engines.opening import open_engine  # noqa: E402
from grpo_pipeline.engines.protocol import Request, SamplingParams  # noqa: E402
from grpo_pipeline.labelling.ledger import FILE, Ledger  # noqa: E402
from grpo_pipeline.stages import labels, models, problems, rollouts  # noqa: E402
from grpo_pipeline.stages.run import run_root  # noqa: E402
from tests.labelling.contract import (  # noqa: E402
    TINY,
    check_greedy_labels_are_the_same,
    check_labels_agree_with_the_oracle,
    check_stop_string_across_the_boundary,
    label,
    solved_world,
)

ROOT = Path(__file__).resolve().parents[2]
START_S = 600  # seconds that vLLM may take to start on a busy machine


@pytest.fixture(scope="module")
def transformers():
    with open_engine(TINY, ModelConfig(device="cpu"), EngineConfig(), model_id="tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def vllm():
    config = EngineConfig(kind="vllm", max_batch=64)
    with open_engine(TINY, ModelConfig(device="cpu"), config, model_id="tiny") as engine:
        yield engine


@pytest.fixture(scope="module")
def world(transformers):
    return solved_world(transformers)


def test_greedy_labels_are_those_of_transformers(vllm, transformers, world):
    check_greedy_labels_are_the_same(vllm, transformers, world)


def test_labels_agree_with_the_oracle(vllm, world):
    check_labels_agree_with_the_oracle(vllm, world)


def test_a_stop_string_across_the_prefixs_end(vllm, world):
    check_stop_string_across_the_boundary(vllm, world)


def test_the_same_seeds_give_the_same_labels_whatever_else_is_sampled(vllm, world):
    whole = label(world, vllm, completions=4)
    waves = label(world, vllm, completions=4, schedule="soft_adaptive", wave=1, interval_width=0.01)
    assert waves.step_labels.equals(whole.step_labels)


def test_the_stage_from_end_to_end(tmp_path):
    config = parse_config(
        {
            "root": str(tmp_path),
            "engine": {"kind": "vllm", "max_batch": 64},
            "model": {"path": str(TINY), "device": "cpu"},
            "problems": {"count": 16, "eval_count": 4},
            "sampling": {"max_tokens": 96},
            "labelling": {"problems": 8, "rollouts": 2, "completions": 4},
            "store": {"problems_per_shard": 4},
        },
        "test",
    )
    given = problems.make_problems(config)
    policy = models.base_policy(config)
    solutions = rollouts.sample_rollouts(config, "label", 0, given, policy)
    labelled = labels.label_steps(config, 0, given, solutions, policy)
    assert labelled.read("step_labels").height == solutions.read("steps").height
    receipt = labelled.manifest().receipt
    with Ledger(Path(run_root(config)) / "ledger") as ledger:
        assert len(ledger) == receipt["completions_sampled"] == labelled.read("completions").height
    # Another schedule finds all that it needs in the ledger.
    other = config.model_copy(update={"labelling": config.labelling.model_copy(update={"schedule": "closure"})})
    again = labels.label_steps(other, 0, given, solutions, policy).manifest().receipt
    assert again["completions_sampled"] == 0
    assert again["completions_reused"] > 0


STAGE = textwrap.dedent("""
    import os, sys
    sys.path.insert(0, {root!r})
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = {multiprocessing!r}
    from pathlib import Path
    from grpo_pipeline.config import EngineConfig, ModelConfig
    from grpo_pipeline.engines.opening import open_engine
    from grpo_pipeline.labelling.ledger import Ledger
    from tests.labelling.contract import TINY, label, solved_world

    def main():
        config = EngineConfig(kind="vllm", max_batch=4, enforce_eager=True)
        engine = open_engine(TINY, ModelConfig(device="cpu"), config, model_id="tiny")
        with Ledger(Path(sys.argv[1])) as ledger:
            label(solved_world(engine, problems=6), engine, ledger=ledger, completions=32)

    if __name__ == "__main__":
        main()
""")


def family(pid):
    """A process and all its descendants."""
    children = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def command_of(pid):
    """Its command line; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.1)


def assert_all_end(commands):
    """That each of these processes ends soon, by pid and command line."""

    def alive():
        return {pid: command for pid, command in commands.items() if command_of(pid) == command}

    wait_until(lambda: not alive(), 30, lambda: f"still alive: {alive()}")


@pytest.mark.parametrize("multiprocessing", ["0", "1"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_stage_leaves_no_process(multiprocessing, number, tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(STAGE.format(root=str(ROOT), multiprocessing=multiprocessing))
    ledger = tmp_path / "ledger"
    process = subprocess.Popen([sys.executable, str(script), str(ledger)])
    try:
        wait_until(lambda: (ledger / FILE).exists() or process.poll() is not None, START_S, "it did not start")
        wait_until(lambda: process.poll() is not None or rows(ledger) > 20, START_S, "it sampled nothing")
        assert process.poll() is None, "it ended before it could be killed"
        commands = {pid: command_of(pid) for pid in family(process.pid)}
        # The watchdog at least; with multiprocessing the engine's core as well.
        assert sum("guard" in command for command in commands.values()) == 1
        assert any("spawn_main" in c or "EngineCore" in c for c in commands.values()) == (multiprocessing == "1")
        process.send_signal(number)
        process.wait(timeout=30)
        assert_all_end(commands)
        kept = rows(ledger)
        assert kept > 20
    finally:
        process.kill()
        process.wait()


def rows(folder):
    with Ledger(folder) as ledger:
        return len(ledger)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_serve_completer_leaves_no_process(number):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from grpo_pipeline.cli import app; app()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve-completer", str(TINY), "--port", str(port), "--enforce-eager"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: process.poll() is not None or answers(port), START_S, "the server did not come up")
        assert process.poll() is None, "the server ended"
        with open_engine(
            TINY,
            ModelConfig(device="cpu"),
            EngineConfig(kind="server", base_url=f"http://127.0.0.1:{port}/v1"),
            model_id="tiny",
        ) as engine:
            sample = engine.generate([Request(engine.tokenizer.encode("Tom has 3 pens.\n"), [1])], SamplingParams())
            assert sample[0][0].token_ids.size
        commands = {pid: command_of(pid) for pid in family(process.pid)}
        assert len(commands) >= 4, commands  # itself, the watchdog, the API server, its engine core
        process.send_signal(number)
        process.wait(timeout=30)
        assert_all_end(commands)
        assert not answers(port)
    finally:
        process.kill()
        process.wait()


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as response:
            return bool(json.loads(response.read())["data"])
    except OSError:
        return False
