"""serve-completer: its flags, and the real server behind the contract (vllm environment only)."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from grpo_pipeline.config import EngineConfig, ModelConfig
from grpo_pipeline.engines.server import ServerEngine
from grpo_pipeline.engines.serving import serve_command
from grpo_pipeline.processes.guard import marked_processes
from tests.engines.contract import CHECKS, Subject, check_eos

LAUNCH = """
import sys
from pathlib import Path
from grpo_pipeline.processes.guard import ProcessGuard
from grpo_pipeline.engines.serving import serve_command, start_server
guard = ProcessGuard()
print(guard.mark, flush=True)
command = serve_command(Path(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), names=["m"], dtype="auto",
                        max_model_len=None, max_batch=16, gpu_memory_utilization=0.5, tensor_parallel_size=1,
                        on_cpu=True)
sys.exit(start_server(command, guard, on_cpu=True).wait())
"""


def arguments(**changes):
    settings = {"host": "127.0.0.1", "port": 8000, "names": ["id"], "dtype": "auto", "max_model_len": 512}
    settings |= {"max_batch": 8, "gpu_memory_utilization": 0.5, "tensor_parallel_size": 2, "on_cpu": True}
    return serve_command(Path("some/model"), **(settings | changes))


def test_the_command_line_asks_for_what_the_engine_counts_on():
    command = arguments()
    pairs = dict(itertools.pairwise(command))
    assert (pairs["-m"], pairs["--model"]) == ("vllm.entrypoints.openai.api_server", "some/model")
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert pairs["--generation-config"] == "vllm"
    assert (pairs["--port"], pairs["--max-model-len"], pairs["--tensor-parallel-size"]) == ("8000", "512", "2")
    names = command[command.index("--served-model-name") + 1 :][:3]
    assert names == [str(Path("some/model").resolve()), "some/model", "id"]
    assert pairs["--dtype"] == "float32"
    assert "--no-enable-chunked-prefill" in command


def test_on_a_gpu_chunked_prefill_and_the_type_are_left_to_vllm():
    command = arguments(on_cpu=False, max_model_len=None)
    assert "--no-enable-chunked-prefill" not in command
    assert "--enforce-eager" not in command
    assert "--enforce-eager" in arguments(enforce_eager=True)
    assert "--max-model-len" not in command
    assert dict(itertools.pairwise(command))["--dtype"] == "auto"


@pytest.fixture(scope="module")
def launched(llama_folder):
    pytest.importorskip("vllm")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(llama_folder), str(port)], stdout=subprocess.PIPE, text=True
    )
    mark = process.stdout.readline().strip()
    try:
        deadline = time.monotonic() + 300
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.5)
        yield process, mark, f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.mark.vllm
@pytest.mark.slow
def test_contract_on_the_real_server_which_dies_with_its_owner(launched, llama, llama_folder, prompts, eos_prompt):
    process, mark, url = launched
    config = EngineConfig(kind="server", base_url=url, concurrency=8)
    with ServerEngine.connect(llama_folder, ModelConfig(device="cpu"), config, "m") as engine:
        subject = Subject(engine, llama, prompts, tolerance=1e-3)
        for check in CHECKS:
            check(subject)
        check_eos(subject, eos_prompt)
    pids = marked_processes(mark)
    assert len(pids) >= 2  # the API server and its engine core
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while marked_processes(mark):
        assert time.monotonic() < deadline, f"still alive: {marked_processes(mark)}"
        time.sleep(0.1)
