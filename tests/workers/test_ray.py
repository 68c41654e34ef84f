"""Shards made on a real Ray, which is started on this machine: the rows of threads, lost workers, and no process left.

What needs no Ray comes first.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from grpo_pipeline.config import parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.ledger import Ledger
from grpo_pipeline.processes.guard import VARIABLE
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.loop import iterate_rl, rl_round
from grpo_pipeline.store import Store
from grpo_pipeline.workers import ray_answers, ray_cluster, ray_devices
from grpo_pipeline.workers.ray_ledger import KeptLedger, LedgerKeeper
from tests.flows.conftest import MICRO
from tests.operations.conftest import end, free_port
from tests.store import test_store_s3
from tests.store.conftest import make_checked
from tests.workers.makers import KEY, SPEC, Maker, build

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
endpoint, s3 = test_store_s3.endpoint, test_store_s3.s3


def on_ray(**settings):
    return parse_config({"workers": {"task_runner": "ray", "count": 2, **settings}}, "test").workers


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "log")


def test_without_ray_one_is_told_what_to_install(tmp_path, maker, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed; pip install 'grpo-pipeline\[ray\]'"):
        build(tmp_path, maker, on_ray())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": {"num_gpus": 1}}, "num_gpus: only for workers on Ray"),
        ({"workers": {"ray_address": "auto"}}, "ray_address: only for workers on Ray"),
        ({"workers": {"task_runner": "ray", "ray_address": "ray://head:10001"}}, "Ray's client, ray://, will not do"),
        ({"workers": {"task_runner": "ray"}, "model": {"device": "cuda"}}, "gives a worker on Ray no GPU"),
        ({"workers": {"task_runner": "ray", "num_gpus": 1}, "model": {"device": "cuda:1"}}, "which GPU a worker gets"),
        ({"workers": {"task_runner": "ray", "num_gpus": 2}}, "a worker's model takes 1"),
        (
            {
                "workers": {"task_runner": "ray", "num_gpus": 1},
                "engine": {"kind": "vllm", "tensor_parallel_size": 2},
            },
            "a worker's model takes 2",
        ),
        ({"workers": {"task_runner": "dask"}}, "workers.task_runner"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError) as refused:
        parse_config(settings, "test")
    assert message in str(refused.value)


def test_a_kept_ledger_excludes_its_workers_and_frees_what_a_dead_one_claimed(tmp_path, monkeypatch):
    keeper = LedgerKeeper(tmp_path)
    monkeypatch.setattr(ray_answers, "answer_of", lambda answer: answer)
    handle = type("Handle", (), {"ask": type("Ask", (), {"remote": staticmethod(keeper.ask)})})
    first, second = KeptLedger(handle, "worker-0"), KeptLedger(handle, "worker-1")
    one, two = first.new_claimant(), second.new_claimant()
    assert one != two
    assert first.claim([KEY], one) == {KEY}
    assert second.claim([KEY], two) == set()
    keeper.leave("worker-0")
    assert second.claim([KEY], two) == {KEY}
    second.release([KEY], two)
    third = KeptLedger(handle, "worker-2")
    assert third.claim([KEY], third.new_claimant()) == {KEY}
    with pytest.raises(RuntimeError, match="worker-0 was taken for lost"):
        first.claim([KEY], one)  # it lived on, out of reach


@pytest.mark.parametrize("device", ["model", "labelling.completer"])
@pytest.mark.parametrize(("in_cluster", "here"), [(8, False), (0, True)])
def test_gpus_that_auto_would_pass_over_in_silence_are_an_error(monkeypatch, device, in_cluster, here):
    monkeypatch.setattr(ray_devices, "_has_gpu_here", lambda: here)
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0} | ({"GPU": float(in_cluster)} if in_cluster else {}))
    settings = {"model": {"device": "cpu"}, "labelling": {"completer": {"path": "there", "device": "cpu"}}}
    ray_devices.check_devices(ray, parse_config(settings, "test"), 0)
    place = settings["model"] if device == "model" else settings["labelling"]["completer"]
    place["device"] = "auto"
    with pytest.raises(
        UserError, match=rf"^{device}\.device = 'auto' .* {'has 8' if in_cluster else 'has one'}, .*"
    ) as e:
        ray_devices.check_devices(ray, parse_config(settings, "test"), 0)
    assert "set workers.num_gpus = 1, or 'cpu' as the device" in str(e.value)
    ray_devices.check_devices(ray, parse_config(settings, "test"), 1)
    vllm = parse_config(settings | {"engine": {"kind": "vllm", "tensor_parallel_size": 2}}, "test")
    with pytest.raises(UserError, match=r"set workers\.num_gpus = 2"):
        ray_devices.check_devices(ray, vllm, 0)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(ray_devices, "_has_gpu_here", lambda: False)
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0})
    ray_devices.check_devices(ray, parse_config({"model": {"device": "auto"}}, "test"), 0)


def test_what_sigterm_means_survives_a_ray_that_does_not_start(monkeypatch):
    def init(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray's own handler comes before what fails
        raise RuntimeError("no cluster")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, shutdown=lambda: None))
    try:
        with pytest.raises(UserError, match="no Ray cluster"), ray_cluster.connect(on_ray(ray_address="auto")):
            pass
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def _ray():
    # Said outright, since a driver that names an address does not look for a token by itself.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # the loopback alone (`ray_cluster`)
        pytest.importorskip("ray")
        subprocess.run([RAY, "get-auth-token", "--generate"], check=True, capture_output=True)
        yield


def finished(root):
    """The shards whose markers stand."""
    markers = (root / "staging" / SPEC.fingerprint / "done").glob("[0-9]*.json")  # no half-written one
    return {int(path.stem) for path in markers}


def ray_processes():
    """Processes of Ray on this machine."""
    names = ("raylet", "gcs_server", "ray::", "ray/_private", "ray/dashboard")
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(name in command for name in names):
            found.append(process)
    return found


def ours_folder(processes):
    """The folder that a cluster which a stage started has its logs and sockets in."""
    (raylet,) = [one for one in processes if one.name() == "raylet"]
    socket = next(part for part in raylet.cmdline() if part.startswith("--raylet_socket_name="))
    return socket.partition("=")[2].partition("/r/session")[0]


@pytest.fixture
def clean_ray(_ray):
    """Ray's processes before the test, of which it may leave no more."""
    before = set(ray_processes())
    yield before
    gone, alive = psutil.wait_procs(set(ray_processes()) - before, timeout=20)
    assert not alive, [" ".join(one.cmdline()) for one in alive]


@pytest.mark.slow
def test_workers_open_once_and_share_the_ledger_of_this_machine(tmp_path, maker, clean_ray):
    maker = replace(maker, ledger_folder=tmp_path / "ledger")
    term, marks = signal.getsignal(signal.SIGTERM), os.environ.get(VARIABLE)
    made = build(tmp_path / "ray", maker, on_ray())
    plain = Store(tmp_path / "plain").build(SPEC, 6, make_checked)
    assert made.read("checked").equals(plain.read("checked"))
    lines = maker.lines()
    assert sorted(what for _, what in lines) == ["0", "1", "2", "3", "4", "5", "close", "close", "open", "open"]
    assert len({process for process, _ in lines}) == 2
    assert str(os.getpid()) not in {process for process, _ in lines}
    with Ledger(maker.ledger_folder) as ledger:
        draws = ledger.find(KEY, 0, 99)
    assert [(draw.index, draw.answer) for draw in draws] == [(shard, str(shard)) for shard in range(6)]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert signal.getsignal(signal.SIGTERM) is term
    assert os.environ.get(VARIABLE) == marks


@pytest.mark.slow
@pytest.mark.parametrize("die", [2, 5])  # with others waiting, and as the last, which an idle worker takes over
def test_a_lost_workers_shard_is_made_by_another_and_its_claims_are_void(tmp_path, maker, clean_ray, die):
    maker = replace(maker, die=die, ledger_folder=tmp_path / "ledger")
    build(tmp_path / "run", maker, on_ray())
    assert maker.made() == [0, 1, 2, 3, 4, 5]
    openers = [process for process, what in maker.lines() if what == "open"]
    assert len(openers) == len(set(openers)) >= 2  # the dead one and who took its shard over


@pytest.mark.slow
def test_an_error_of_the_users_is_one_here_too_and_keeps_what_is_finished(tmp_path, maker, clean_ray):
    with pytest.raises(UserError, match=r"^shard 3 is refused$"):
        build(tmp_path / "run", replace(maker, refuse=3), on_ray())
    kept = finished(tmp_path / "run")  # the other worker may have been killed between its line and its marker
    assert len(kept) >= 2
    assert 3 not in kept
    maker.log.unlink()
    build(tmp_path / "run", maker, on_ray(count=1))
    assert maker.made() == sorted(set(range(6)) - kept)


@pytest.mark.slow
def test_gpus_that_are_not_there_and_clusters_that_do_not_answer(tmp_path, maker, clean_ray):
    with pytest.raises(UserError, match="no Ray cluster"):
        build(tmp_path, maker, on_ray(ray_address="127.0.0.1:1"))
    if not Path("/dev/nvidia0").exists():
        with pytest.raises(UserError, match="Ray finds 0 GPUs on this machine"):
            build(tmp_path, maker, on_ray(num_gpus=1))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_stage_leaves_no_process_of_ray_and_goes_on(tmp_path, maker, clean_ray, how):
    command = [sys.executable, "-m", "tests.workers.makers", str(tmp_path / "run"), str(maker.log), "1", "ray"]
    process = subprocess.Popen(command, cwd=ROOT)
    marker = tmp_path / "run" / "staging" / SPEC.fingerprint / "done" / "00000.json"
    limit = time.monotonic() + 120
    while not marker.exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    ours = set(ray_processes()) - clean_ray
    assert Path(ours_folder(ours)).stat().st_mode & 0o777 == 0o700
    listening = [(each.name(), *one.laddr) for each in ours for one in each.net_connections() if one.status == "LISTEN"]
    assert len(listening) >= 5
    assert all("127.0.0.1" in address for _, address, _ in listening), listening
    process.send_signal(how)
    killed = time.monotonic()
    process.wait()
    gone, alive = psutil.wait_procs(ours, timeout=15)
    assert not alive
    print(f"{len(ours)} processes of Ray were gone {time.monotonic() - killed:.1f} s after {how.name}")
    kept = finished(tmp_path / "run")
    maker.log.unlink()
    made = build(tmp_path / "run", maker, on_ray())
    assert maker.made() == sorted(set(range(6)) - kept)
    assert made.read("checked").equals(Store(tmp_path / "plain").build(SPEC, 6, make_checked).read("checked"))


@pytest.mark.slow
def test_workers_write_to_an_object_store(tmp_path, maker, s3, clean_ray):
    made = build(s3.root, replace(maker, ledger_folder=tmp_path / "ledger"), on_ray())
    assert made.root.startswith("s3://")
    assert made.read("checked").equals(Store(tmp_path / "plain").build(SPEC, 6, make_checked).read("checked"))
    assert maker.made() == [0, 1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def cluster(_ray, tmp_path_factory):
    """The address of a running cluster of two CPUs."""
    log, port = tmp_path_factory.mktemp("ray") / "log", free_port()
    start = [RAY, "start", "--head", f"--port={port}", "--num-cpus=2", "--object-store-memory=134217728", "--block"]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*start, "--include-dashboard=false"], stdout=file, stderr=file, env=environment, start_new_session=True
        )
    try:
        limit = time.monotonic() + 300
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        end(process)


def timeless(frame):
    """A table without the columns that say how long its rows took."""
    return frame.select(name for name in frame.columns if not (name == "step_time" or name.startswith("time/")))


def numbers(ref):
    """A manifest's counts, tokens and receipt, without times and the store's place."""
    manifest = ref.manifest()
    receipt = {name: value for name, value in manifest.receipt.items() if not name.endswith("seconds")}
    return json.dumps([manifest.counts, manifest.tokens, receipt]).replace(ref.root, "ROOT")


def compare(ours, theirs):
    """Fail where the artifacts of two runs differ; the number of their tables."""
    tables = 0
    assert [ref.path for ref in ours] == [ref.path for ref in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.tables == other.tables
        assert numbers(one) == numbers(other), one.path
        assert one.manifest().model == other.manifest().model
        for table in one.tables:
            tables += 1
            assert timeless(one.read(table)).equals(timeless(other.read(table))), f"{one.path}: {table}"
    return tables


@pytest.mark.slow
def test_iterate_rl_gives_row_for_row_what_threads_give(tmp_path, cluster):
    runs = {}
    for name, workers in {"threads": {}, "ray": {"task_runner": "ray", "count": 2, "ray_address": cluster}}.items():
        place = MICRO.get("model", {}) | {"device": "cpu"}
        settings = MICRO | {"model": place, "root": str(tmp_path / name), "rounds": 1, "workers": workers}
        config = parse_config(settings, "test")
        start = time.monotonic()
        iterate_rl(Stages(), config, partial(rl_round, Stages()))
        print(f"{name}: {time.monotonic() - start:.1f} s")
        runs[name] = Store(tmp_path / name / config.name).artifacts()
    assert compare(runs["ray"], runs["threads"]) > 40
