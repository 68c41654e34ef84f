"""Runs on a real server and worker: retry, cancel, a killed process, a schedule, a server that restarts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.operations.conftest import PREFECT, ROOT, end, free_port, overrides, start_server

pytestmark = pytest.mark.slow


def processes_of(run):
    """The process that executes a flow run, and all it has started."""
    found = []
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID", "").replace("-", "") == run.replace("-", ""):
            found += [process, *process.children(recursive=True)]
    return set(found)


def kill_flow(run):
    """SIGKILL to the process that executes a flow run, and to it alone."""
    running = processes_of(run)
    (first,) = [one for one in running if one.parent() not in running]
    first.kill()


def await_round(config, timeout=600):
    """Wait until a round of the run is finished."""
    limit = time.monotonic() + timeout
    while not rounds_of(config):
        assert time.monotonic() < limit, "no round"
        time.sleep(0.2)


def artifacts(config):
    return sorted(path.name for path in Path(config["root"], config["name"], "artifacts").iterdir())


def await_training(server, name):
    """Wait until a run's trainer shows progress."""
    limit = time.monotonic() + 300
    while server.artifacts().get(f"{name}-train-policy-progress") is None:
        assert time.monotonic() < limit
        time.sleep(0.5)


def test_a_cancelled_run_ends_within_ten_seconds_and_keeps_its_work(worker, config):
    config |= {"name": "cancelled", "rounds": 1, "policy": config["policy"] | {"steps": 200}}
    run = worker.run("iterate-rl/default", config)
    await_round(config)
    await_training(worker, "cancelled")
    running = processes_of(run)
    computing = {one for one in running if "grpo_pipeline.processes" in " ".join(one.cmdline())}
    assert computing
    kept = artifacts(config)
    command = subprocess.Popen([PREFECT, "--no-prompt", "flow-run", "cancel", run], cwd=ROOT, env=worker.environment)
    gone, alive = psutil.wait_procs(computing, timeout=120)
    ended = time.time()
    assert not alive
    gone, alive = psutil.wait_procs(running, timeout=60)
    all_ended = time.time()
    assert not alive
    assert command.wait(120) == 0
    asked = worker.reached(run, "CANCELLING")
    print(f"after the command: engine and trainer ended in {ended - asked:.1f} s, all in {all_ended - asked:.1f} s")
    assert ended - asked < 10
    worker.await_state(run, "CANCELLED", timeout=180)
    assert set(kept) <= set(artifacts(config))


def test_a_failed_run_is_retried_and_makes_nothing_twice(worker, config, tmp_path):
    source = tmp_path / "problems.jsonl"
    config |= {
        "name": "retried",
        "problems": {
            "source": str(source),
            "reader": "columns",
            "eval_count": 2,
            "columns": {"question": "question", "gold_answer": "answer"},
        },
    }
    run = worker.run("iterate-rl/default", config)
    failed = worker.await_state(run, "FAILED", "COMPLETED", "CRASHED")
    assert failed["state"]["type"] == "FAILED"
    assert str(source) in failed["state"]["message"]
    rows = [{"question": f"How much is {k} + {k}?", "answer": str(2 * k)} for k in range(1, 13)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    worker.prefect("flow-run", "retry", run)
    done = worker.await_state(run, "COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    assert done["state"]["type"] == "COMPLETED", done["state"]
    assert done["run_count"] == 2


def test_a_second_run_of_the_loop_is_cancelled(worker, config):
    config |= {"name": "first"}
    first = worker.run("iterate-rl/default", config)
    worker.await_state(first, "RUNNING", "COMPLETED")
    second = worker.run("iterate-rl/default", config | {"name": "second"})
    assert worker.await_state(second, "CANCELLED", "RUNNING")["state"]["type"] == "CANCELLED"
    worker.await_state(first, "COMPLETED")


def rounds_of(config):
    folder = Path(config["root"], config["name"], "artifacts")
    return sorted(path.name.split("-")[1] for path in folder.glob("round-*"))


def test_a_schedule_makes_one_round_each_time(worker, config):
    config |= {"name": "unattended"}
    deployment = worker.api("/deployments/name/next-round/nightly")["id"]
    answer = httpx.patch(f"{worker.url}/api/deployments/{deployment}", json={"parameters": {"config": config}})
    answer.raise_for_status()
    worker.prefect("deployment", "schedule", "create", "next-round/nightly", "--interval", "60")
    (ours,) = [one for one in worker.api(f"/deployments/{deployment}")["schedules"] if "interval" in one["schedule"]]
    try:
        limit = time.monotonic() + 900
        while len(rounds_of(config)) < 3:
            assert time.monotonic() < limit, rounds_of(config)
            time.sleep(2)
    finally:
        worker.prefect("deployment", "schedule", "delete", "next-round/nightly", ours["id"], "--accept-yes")
    assert rounds_of(config)[:3] == ["r0", "r1", "r2"]


def test_a_killed_run_is_marked_by_its_worker_and_goes_on_when_retried(worker, config):
    config |= {"name": "killed", "rounds": 1, "policy": config["policy"] | {"steps": 60}}
    run = worker.run("iterate-rl/default", config)
    await_round(config)
    await_training(worker, "killed")
    running = processes_of(run)
    kept = artifacts(config)
    killed = time.time()
    kill_flow(run)
    crashed = worker.await_state(run, "CRASHED", timeout=120)
    print(f"crashed {worker.reached(run, 'CRASHED') - killed:.1f} s after SIGKILL: {crashed['state']['message']}")
    gone, alive = psutil.wait_procs(running, timeout=30)
    assert not alive
    time.sleep(40)  # the worker reports a crash twice, and would take the retry for what crashed
    worker.prefect("flow-run", "retry", run)
    done = worker.await_state(run, "COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    assert done["state"]["type"] == "COMPLETED", done["state"]
    assert rounds_of(config) == ["r0", "r1"]
    assert set(kept) <= set(artifacts(config))


def test_a_killed_run_without_a_worker_is_marked_by_the_automation(server, config, tmp_path):
    """As when the whole machine goes down: nobody is left to report it. A flow that a shell started is alike."""
    config |= {"name": "silent", "rounds": 1, "policy": config["policy"] | {"steps": 300}}
    command = [sys.executable, "-m", "flows.cli", "iterate-rl", *overrides(config)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=server.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        await_round(config)
        await_training(server, "silent")
    finally:
        end(process, signal.SIGKILL)
    killed = time.time()
    runs = server.api("/flow_runs/filter", {"flow_runs": {"name": {"any_": ["silent", "silent-round-1"]}}})
    assert len(runs) == 2
    for run in runs:
        state = server.await_state(run["id"], "CRASHED", timeout=480)["state"]
        print(f"{run['name']} crashed {server.reached(run['id'], 'CRASHED') - killed:.0f} s after SIGKILL")
        assert "No heartbeat" in state["message"]


def test_a_served_run_outlives_a_restart_of_the_server(tmp_path_factory, config):
    """Without a worker: `grpo-pipeline serve` runs what is started, here while the server goes away and comes back."""
    folder, port = tmp_path_factory.mktemp("restarted"), free_port()
    processes = []
    try:
        process, server = start_server(folder, port)
        processes.append(process)
        log = (folder / "serve.log").open("ab")
        command = [sys.executable, "-m", "flows.cli", "serve"]
        served = subprocess.Popen(
            command, cwd=ROOT, env=server.environment, stdout=log, stderr=log, start_new_session=True
        )
        processes.append(served)
        limit = time.monotonic() + 120
        while not server.api("/deployments/filter", {}):
            assert time.monotonic() < limit
            time.sleep(0.5)
        config |= {"name": "restarted", "rounds": 1, "policy": config["policy"] | {"steps": 40}}
        run = server.run("iterate-rl/default", config)
        await_round(config)
        end(process)
        process, server = start_server(folder, port)
        processes.append(process)
        assert server.await_state(run, "COMPLETED", "CRASHED", "FAILED")["state"]["type"] == "COMPLETED"
        assert rounds_of(config) == ["r0", "r1"]
    finally:
        for process in reversed(processes):
            end(process)


def test_a_run_that_nobody_listens_for_ends_when_it_is_cancelled(tmp_path_factory, config):
    """As after a restart of the server that the worker's listening did not outlive: here a flow from a shell."""
    folder, port = tmp_path_factory.mktemp("unheard"), free_port()
    processes = []
    try:
        process, server = start_server(folder, port)
        processes.append(process)
        config |= {"name": "unheard", "rounds": 1, "policy": config["policy"] | {"steps": 300}}
        command = [sys.executable, "-m", "flows.cli", "iterate-rl", *overrides(config)]
        with (folder / "run.log").open("wb") as log:
            flow = subprocess.Popen(
                command, cwd=ROOT, env=server.environment, stdout=log, stderr=log, start_new_session=True
            )
        processes.append(flow)
        await_round(config)
        await_training(server, "unheard")
        end(process)
        process, server = start_server(folder, port)
        processes.append(process)
        runs = server.api("/flow_runs/filter", {"flow_runs": {"name": {"any_": ["unheard", "unheard-round-1"]}}})
        job, one_round = sorted(runs, key=lambda run: len(run["name"]))
        running = {psutil.Process(flow.pid), *psutil.Process(flow.pid).children(recursive=True)}
        kept = artifacts(config)
        server.prefect("flow-run", "cancel", job["id"])
        asked = server.reached(job["id"], "CANCELLING")
        gone, alive = psutil.wait_procs(running, timeout=120)
        assert not alive
        print(f"all processes had ended {time.time() - asked:.1f} s after the command")
        for run in (job, one_round):
            assert server.await_state(run["id"], "CANCELLED", "CRASHED", "FAILED")["state"]["type"] == "CANCELLED"
        assert set(kept) <= set(artifacts(config))
        shown = (folder / "run.log").read_text()
        assert shown.endswith("Flow run was cancelled: its own process found out.\n")
        assert "Traceback" not in shown
    finally:
        for one in reversed(processes):
            end(one)
