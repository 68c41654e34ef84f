"""Ctrl-C as a terminal sends it, to all processes of a command: one line, exit code 130, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from grpo_pipeline.settings_text import toml_lines
from tests.flows.conftest import MICRO

ROOT = Path(__file__).parents[2]
MARK = "GRPO_PIPELINE_INTERRUPTED"
LONG = MICRO["labelling"] | {"problems": 16, "completions": 2000}
"""Labels that take far longer than any test waits."""


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "micro.toml"
        settings = MICRO | {"name": "long", "child_processes": True, "root": str(tmp_path / "runs")} | changes
        path.write_text("\n".join(toml_lines(settings)))
        return path

    return write


def alive(mark):
    """What bears the mark in its environment, whatever it has become since."""
    found = [one.info for one in psutil.process_iter(["environ", "cmdline", "status"])]
    return [
        " ".join(one["cmdline"] or [])[:100]
        for one in found
        if (one["environ"] or {}).get(MARK) == mark and one["status"] != psutil.STATUS_ZOMBIE
    ]


def press(command):
    """What Ctrl-C does: a signal to all processes of the command."""
    os.killpg(command.pid, signal.SIGINT)


def terminate(command):
    """What `timeout` and schedulers do: a signal to the command alone."""
    command.terminate()


def kill_its_children(command):
    """What the system does to processes that have too much memory: the stage's, or those that make its shards."""
    (server,) = [
        one for one in psutil.Process(command.pid).children() if "grpo_pipeline.processes.server" in one.cmdline()
    ]
    for one in server.children():
        one.kill()


def interrupt(arguments, folder, pattern, presses=1, strike=press):
    """Run a command and press Ctrl-C, or whatever `strike` does, once a file of the pattern is there.

    Returns exit code, lines of standard error, and the seconds that it took to end.
    """
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {
        MARK: mark,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PREFECT_HOME": str(folder / "prefect"),
    }
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            limit = time.monotonic() + 300
            while not list(folder.glob(pattern)):
                assert process.poll() is None, (folder / "err").read_text()
                assert time.monotonic() < limit, (folder / "err").read_text()
                time.sleep(0.02)
            pressed = time.monotonic()
            for _ in range(presses):
                strike(process)
                time.sleep(0.3)
            code = process.wait(60)
            took = time.monotonic() - pressed
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    limit = time.monotonic() + 10
    while (left := alive(mark)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left == []
    printed = (folder / "out").read_text() + (folder / "err").read_text()
    assert "Traceback" not in printed
    assert "Crash" not in printed
    return code, (folder / "err").read_text().splitlines(), took


def said(lines, root):
    """The lines of Ctrl-C; they must be the last."""
    line = f"interrupted; what is finished is kept in {root}/long, and the same command goes on from there"
    assert lines[-1] == line
    return lines.count(line)


LEDGER = "runs/long/ledger/*"


def test_a_stage_without_prefect(config, tmp_path):
    path = config(labelling=LONG)
    arguments = ["-m", "flows.cli", "run", "label-steps", "--config", str(path)]
    code, lines, took = interrupt(arguments, tmp_path, LEDGER)
    assert code == 130
    assert lines[0].startswith("label-steps of round 0")
    assert said(lines, tmp_path / "runs") == 1
    assert len(lines) == 2
    assert took < 15


@pytest.mark.parametrize(
    "workers", [pytest.param({}, marks=pytest.mark.slow), {"task_runner": "processes", "count": 2}]
)
def test_sigterm_ends_a_stage_without_prefect_as_ctrl_c_does(config, tmp_path, monkeypatch, workers):
    (scratch := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    path = config(labelling=LONG, workers=workers)
    arguments = ["-m", "flows.cli", "run", "label-steps", "--config", str(path)]
    code, lines, took = interrupt(arguments, tmp_path, LEDGER, strike=terminate)
    assert code == 130
    assert said(lines, tmp_path / "runs") == 1
    assert took < 15
    assert list(scratch.glob("grpo-pipeline-shards-*")) == []


@pytest.mark.parametrize(
    "command", [["run", "label-steps"], pytest.param(["build-prm-dataset"], marks=pytest.mark.slow)]
)
def test_a_killed_stage_is_one_line(config, tmp_path, command):
    path = config(labelling=LONG, workers={"task_runner": "processes", "count": 2})
    arguments = ["-m", "flows.cli", *command, "--config", str(path)]
    code, lines, took = interrupt(arguments, tmp_path, LEDGER, strike=kill_its_children)
    assert code == 1
    died = (
        r"grpo_pipeline\.(stages\.labels:label_steps|workers\.processes:make_shards): its process was killed by SIGKILL"
    )
    assert re.fullmatch(rf"error: {died} \(out of memory\?\); what was finished is kept, run it again", lines[-1])
    assert took < 15


def test_a_command_that_keeps_nothing(tmp_path):
    program = """
import sys, time
from pathlib import Path
from grpo_pipeline import cli
@cli.app.command("wait")
def wait(file: Path) -> None:
    file.write_text("")
    time.sleep(60)
sys.argv = ["grpo-pipeline", "wait", sys.argv[1]]
cli.run()
"""
    code, lines, _ = interrupt(["-c", program, str(tmp_path / "begun")], tmp_path, "begun")
    assert code == 130
    assert lines == ["interrupted; nothing that was finished is lost, and the same command can be given again"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-m", "flows.cli", "iterate-rl"], ["-m", "flows.iterate_rl"]])
@pytest.mark.parametrize("presses", [1, 2])
def test_a_flow_with_its_temporary_server(config, tmp_path, arguments, presses):
    path = config(labelling=LONG)
    code, lines, took = interrupt([*arguments, "--config", str(path)], tmp_path, LEDGER, presses)
    assert code == 130
    assert said(lines, tmp_path / "runs") == 1
    assert took < 15


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run", "train-prm"], ["train-prm"]])
def test_a_training_in_two_processes(config, tmp_path, command):
    path = config(
        training={"processes": 2, "checkpoint_every": 1},
        reward_model=MICRO["reward_model"] | {"epochs": 10_000},
    )
    arguments = ["-m", "flows.cli", *command, "--config", str(path)]
    code, lines, took = interrupt(arguments, tmp_path, "runs/long/staging/*/work/checkpoints/step-*")
    assert code == 130
    assert said(lines, tmp_path / "runs") == 1
    assert took < 20
    # It can go on: the newest checkpoint is whole.
    (newest,) = tmp_path.glob("runs/long/staging/*/work/checkpoints/step-*")
    assert {path.name for path in newest.iterdir()} == {"tensors.safetensors", "state.json"}
    assert re.fullmatch(r"step-\d{8}", newest.name)
