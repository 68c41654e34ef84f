"""Calls in child processes: results, errors and reports come back; nothing outlives the caller."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from grpo_pipeline import progress
from grpo_pipeline.config import RunConfig, parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.processes import calls
from grpo_pipeline.processes.calls import ChildError, run_in_child
from grpo_pipeline.processes.guard import VARIABLE
from grpo_pipeline.processes.messages import decode_arguments, encode_arguments, name_of
from grpo_pipeline.stages import comparison, evaluation, labels, models, prm_files, problems, rollouts, rounds
from grpo_pipeline.stages.isolation import MODEL_STAGES, run_stage
from grpo_pipeline.store import ArtifactRef
from tests.flows.conftest import MICRO
from tests.processes import calls_to_make

ROOT = Path(__file__).parents[2]
REF = ArtifactRef(root="r", path="artifacts/a-r0-0123456789ab", fingerprint="f" * 64, stage="a", round=0, tables=("t",))


def server_threads():
    pid = calls._shared()
    (server,) = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit()
        and f"grpo_pipeline.processes.server\0{os.getpid()}\0".encode() in read(folder / "cmdline")
        and f"PPid:\t{os.getpid()}\n".encode() in read(folder / "status")
    ]
    assert pid.alive
    return server, len(list(Path(f"/proc/{server}/task").iterdir()))


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_call_finds_its_surroundings_and_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "1")
    found = [run_in_child(calls_to_make.surroundings, RunConfig(name="x"), "SET_AFTER_THE_SERVER") for _ in range(2)]
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "2")
    found.append(run_in_child(calls_to_make.surroundings, RunConfig(name="x"), variable="SET_AFTER_THE_SERVER"))
    assert [one["variable"] for one in found] == ["1", "1", "2"]
    assert {one["folder"] for one in found} == {str(tmp_path)}
    assert {one["cuda"] for one in found} == {"False"}
    assert {one["modules"] for one in found} == {"torch,transformers,polars"}
    assert len({one["pid"] for one in found}) == 3
    assert all(one["pid"] == one["group"] != str(os.getpgid(0)) for one in found)


def test_the_server_forks_with_one_thread():
    run_in_child(calls_to_make.surroundings, RunConfig(), "HOME")
    _, threads = server_threads()
    assert threads == 1


def test_references_come_back_as_they_went_and_know_that_they_were_found():
    found = REF.model_copy(update={"cached": True})
    assert run_in_child(calls_to_make.same, found, ((REF, REF), (found, REF))).cached
    assert not run_in_child(calls_to_make.same, REF, ()).cached
    other = REF.model_copy(update={"fingerprint": "0" * 64})
    assert run_in_child(calls_to_make.same, REF, ((REF, other),)) is None
    assert "cached" not in REF.model_dump()  # in transit only: a manifest says nothing of it


def test_errors_come_back():
    with pytest.raises(UserError, match=r"^no such thing: do this instead$"):
        run_in_child(calls_to_make.fail, "user")
    with pytest.raises(ChildError, match=r"(?s)fail failed: ZeroDivisionError: by nothing.*calls_to_make.py"):
        run_in_child(calls_to_make.fail, "bug")
    with pytest.raises(ChildError, match=r"its process was killed by SIGKILL \(out of memory\?\)"):
        run_in_child(calls_to_make.fail, "killed")
    with pytest.raises(ChildError, match="exited with code"):
        run_in_child(calls_to_make.fail, "exit")


def test_calls_of_a_call_are_forked_from_the_same_server():
    server, _ = server_threads()
    assert run_in_child(calls_to_make.parent_and_those_of_calls, 3) == [str(server)] * 4
    assert server_threads() == (server, 1)


def test_a_call_whose_process_is_killed_ends_though_waiting_ones_died_before(waiting, living):
    """A worker that is forked while a call arrives keeps no copy of its connection."""
    server, _ = server_threads()
    run_in_child(calls_to_make.parent_and_those_of_calls, 2)  # from now on several wait
    for _ in range(2):
        run_in_child(calls_to_make.parent)
        idle = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and is_child(one, server)]
        for pid in idle:
            os.kill(pid, signal.SIGKILL)
        waiting(lambda pids=idle: not living(pids), 10, "their end")
        with pytest.raises(ChildError, match="killed by SIGKILL"):
            run_in_child(calls_to_make.fail, "killed")


def is_child(process, parent):
    return f"PPid:\t{parent}\n".encode() in read(process / "status")


def test_errors_of_a_calls_call_come_back():
    with pytest.raises(UserError, match=r"^no such thing: do this instead$"):
        run_in_child(calls_to_make.pass_on, "user")
    with pytest.raises(ChildError, match=r"(?s)pass_on failed: ChildError.*fail failed: ZeroDivisionError: by nothing"):
        run_in_child(calls_to_make.pass_on, "bug")
    with pytest.raises(ChildError, match=r"fail: its process was killed by SIGKILL"):
        run_in_child(calls_to_make.pass_on, "killed")


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "killed"])
def test_a_calls_calls_end_with_it(tmp_path, waiting, living, how, deaf):
    class StopError(BaseException):
        pass

    def check():
        if family.exists():
            if how == "cancelled":
                raise StopError
            os.kill(int((tmp_path / "asking").read_text()), signal.SIGKILL)

    family = tmp_path / "family"
    before = calls.each_second.set(check)
    try:
        with pytest.raises(StopError if how == "cancelled" else ChildError):
            run_in_child(calls_to_make.ask_for_a_family, tmp_path, deaf)
    finally:
        calls.each_second.reset(before)
    asked, server, in_group, in_session = map(int, family.read_text().split())
    waiting(lambda: not living([asked, in_group]), 10, "their end")
    assert family.with_suffix(".closed").exists() == (how == "cancelled" and not deaf)
    assert living([server]) == [server]
    os.kill(in_session, signal.SIGKILL)  # in a session of its own: it would end with this process
    assert run_in_child(calls_to_make.parent) == str(server)


def test_a_check_that_raises_ends_the_call_and_its_process(tmp_path):
    class StopError(BaseException):
        pass

    def check():
        if started := list(tmp_path.glob("*")):
            raise StopError(started[0].name)

    before = calls.each_second.set(check)
    try:
        with pytest.raises(StopError) as stopped:
            run_in_child(calls_to_make.say_pid_and_sleep, tmp_path)
    finally:
        calls.each_second.reset(before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(stopped.value)), 0)


def test_log_records_and_counts_come_through(caplog):
    seen = []

    def watch():
        while not done.wait(0.05):
            seen.extend(progress.counts())

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    with caplog.at_level(logging.WARNING):
        run_in_child(calls_to_make.tell, 4)
    done.set()
    thread.join()
    assert ("grpo_pipeline.somewhere", logging.WARNING, "said in the child") in caplog.record_tuples
    assert {(one.description, one.unit, one.total) for one in seen} == {("counting", "sheep", 4)}
    assert progress.counts() == ()


@pytest.mark.slow  # a second server imports torch once more
def test_a_dead_server_is_replaced():
    server, _ = server_threads()
    os.kill(server, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while calls._shared().alive and time.monotonic() < deadline:
        time.sleep(0.01)
        if server_gone(server):
            break
    assert run_in_child(calls_to_make.surroundings, RunConfig(name="again"), "HOME")["name"] == "again"


def server_gone(pid):
    return calls._server is None or not calls._server.alive or not Path(f"/proc/{pid}").exists()


def test_functions_that_a_child_could_not_find_are_refused():
    with pytest.raises(ValueError, match="could not find it"):
        name_of(lambda: None)


STAGES = [
    function
    for module in (comparison, evaluation, labels, models, prm_files, problems, rollouts, rounds)
    for function in vars(module).values()
    if getattr(function, "__module__", None) == module.__name__ and "config" in getattr(function, "__annotations__", {})
]


@pytest.mark.parametrize("stage", [one for one in STAGES if one.__name__ in MODEL_STAGES], ids=lambda one: one.__name__)
def test_every_stages_arguments_survive_the_way(stage):
    model = models.ModelRef(folder=Path("m"), model_id="abc", artifact=REF)
    pair = (REF, REF)
    values = {
        "config": parse_config({"policy": {"optimizer": {"lr": 3e-5}}, "name": "n"}, "x"),
        "purpose": "label",
        "entry": "processbench:x.json",
        **dict.fromkeys(("policy", "completer", "reward_model", "start", "prm"), model),
        **dict.fromkeys(("common", "own", "labelled"), pair),
        "scored": (pair, pair),
    }
    hints = stage.__annotations__
    given = {name: values.get(name, 1 if hints[name] is int else REF) for name in hints if name != "return"}
    assert decode_arguments(stage, encode_arguments(stage, (), given)) == given


def test_the_listed_stages_exist():
    assert {one.__name__ for one in STAGES} >= MODEL_STAGES


def test_stages_run_here_where_the_run_says_so(monkeypatch):
    from grpo_pipeline.stages import isolation

    ran = []
    monkeypatch.setattr(isolation, "run_in_child", lambda stage, *args: ran.append("child"))
    monkeypatch.setattr(isolation, "start_server", lambda: ran.append("server"))

    def base_policy(config):
        ran.append("here")

    def make_problems(config):
        ran.append("here")

    for stage in (base_policy, make_problems):
        for on in (True, False):
            run_stage(stage, RunConfig(child_processes=on))
    assert ran == ["child", "here", "server", "here", "here"]


def test_a_stage_gives_the_same_in_a_child(tmp_path):
    settings = MICRO | {"sampling": {"max_tokens": 16}}
    found = {}
    for where, on in (("here", False), ("child", True)):
        config = parse_config(settings | {"root": str(tmp_path / where), "child_processes": on}, "x")
        made = run_stage(problems.make_problems, config)
        policy = run_stage(models.base_policy, config)
        found[where] = run_stage(rollouts.sample_rollouts, config, "greedy", 0, made, policy)
        assert not found[where].cached
        assert run_stage(rollouts.sample_rollouts, config, "greedy", 0, made, policy).cached
    assert found["here"].fingerprint == found["child"].fingerprint
    for table in ("rollouts", "checked", "steps"):
        assert found["here"].read(table).equals(found["child"].read(table))


CALLER = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    from grpo_pipeline.processes import preload
    from grpo_pipeline.processes.calls import run_in_child
    preload.IN_SERVER = preload.IN_WORKER = ()  # the call needs none of them
    from tests.processes.calls_to_make import start_family
    print("up", flush=True)
    try:
        run_in_child(start_family, Path(sys.argv[1]), sys.argv[2] == "deaf")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")


@pytest.mark.parametrize(
    ("number", "whom", "deaf"),
    [
        (signal.SIGKILL, "caller", False),
        (signal.SIGTERM, "caller", True),
        (signal.SIGINT, "caller", False),
        (signal.SIGKILL, "server", False),
    ],
)
def test_no_process_outlives_its_caller(tmp_path, waiting, living, number, whom, deaf):
    """The worker, its server, a grandchild in the worker's group, and one in a session of its own."""
    log = tmp_path / "pids"
    command = [sys.executable, "-c", CALLER, str(log), "deaf" if deaf else "hears"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(VARIABLE, None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as caller:
        waiting(log.exists, 90, "the call's start")
        pids = list(map(int, log.read_text().split()))
        assert living(pids) == pids
        os.kill(caller.pid if whom == "caller" else pids[1], number)
        struck = time.monotonic()
        waiting(lambda: not living(pids[:3]), 10, "their end")
        caller.wait(15)
        waiting(lambda: not living(pids), 10 - (time.monotonic() - struck), "everyone's end")
    # With a signal that can be heard, the call has closed what it had open.
    assert log.with_suffix(".closed").exists() == (whom == "caller" and not deaf)
