"""One at a time on a device: locks that a dead holder does not keep."""

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.processes import devices
from grpo_pipeline.processes.devices import hold_devices, hold_locks, runtime_folder

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from grpo_pipeline.processes.devices import hold_locks
with hold_locks(["gpu-b", "gpu-a"], "run night: policy, round 3", Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def holder(folder):
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_second_process_waits_says_for_whom_and_goes_on_when_the_first_is_killed(tmp_path, caplog):
    with holder(tmp_path) as first:
        killer = threading.Timer(0.7, first.send_signal, [signal.SIGKILL])
        killer.start()
        with caplog.at_level(logging.WARNING), hold_locks(["gpu-a"], "run day: step_labels, round 1", tmp_path):
            assert first.poll() == -signal.SIGKILL or first.wait(1) == -signal.SIGKILL
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("run day: step_labels, round 1: waiting for gpu-a, which run night: policy, round 3 has")
    assert message.endswith(f"(process {first.pid})")


def test_threads_of_one_process_exclude_each_other_and_other_devices_do_not_wait(tmp_path):
    inside, most = 0, 0
    lock = threading.Lock()

    def work():
        nonlocal inside, most
        with hold_locks(["gpu-a"], "x", tmp_path):
            with lock:
                inside += 1
                most = max(most, inside)
            with hold_locks(["gpu-b"], "another device", tmp_path):
                pass
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_cpu_is_not_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with hold_devices("cpu", "x"):
        assert list(tmp_path.iterdir()) == []


def test_gpus_are_told_apart_by_their_own_number(tmp_path, monkeypatch):
    """cuda:0 under CUDA_VISIBLE_DEVICES=2 is not cuda:0 of another process."""
    import torch

    from grpo_pipeline.models import loading

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(loading, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    numbers = ["aa", "bb", "cc", "dd"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid=numbers[index]))
    held = []

    def note(names, what):
        held.append(list(names))
        return hold_locks([], what)

    monkeypatch.setattr(devices, "hold_locks", note)
    for device, count in (("cuda", 1), ("cuda:0", 1), ("cuda:2", 2), ("cuda:3", 4)):
        with hold_devices(device, "x", count):
            pass
    assert held == [["gpu-bb"], ["gpu-aa"], ["gpu-cc", "gpu-dd"], ["gpu-dd"]]


def test_the_folder_is_ones_own(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = runtime_folder()
    assert folder == tmp_path / f"grpo-pipeline-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)  # whoever may write there could hold every lock
    with pytest.raises(UserError, match="only you may write"):
        runtime_folder()
    folder.rmdir()
    (tmp_path / "mine").mkdir()
    folder.symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="only you may write"):
        runtime_folder()
