"""A Ray cluster to work on: a running one, or one on this machine for as long as a stage lasts."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from grpo_pipeline.config import WorkersConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.processes.guard import ProcessGuard

_CONNECT_LIMIT_S = 10.0
_OBJECT_STORE_BYTES = 128 << 20
"""Shards go by the store; what Ray carries is settings and completions on their way to the ledger."""


@contextmanager
def connect(workers: WorkersConfig) -> Iterator[Any]:
    """The module `ray`, connected; a cluster that was started for this is gone after the block.

    Raises:
        UserError: Ray is not installed, or no cluster answers at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports home unless told not to
    if workers.ray_address is None:
        # Ray's own switch, whose name tells of another use of it: a cluster of one machine, on the loopback alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            "workers.task_runner = 'ray': Ray is not installed; pip install 'grpo-pipeline[ray]', or set "
            "workers.task_runner = 'threads'"
        ) from None
    with ExitStack() as stack:
        with _same_termination():
            if workers.ray_address is None:
                _start(ray, workers, stack)
            else:
                _join(ray, workers.ray_address, stack)
        yield ray


def _start(ray: Any, workers: WorkersConfig, stack: ExitStack) -> None:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo-ray-", ignore_cleanup_errors=True))
    inner = Path(folder, "r")  # Ray opens its folder to everyone; nobody else gets into the outer one
    inner.mkdir()
    # By the mark in their environment Ray's processes are found and ended, should this one be killed. Ray gives them
    # titles, which would be written over their environment.
    os.environ["SPT_NOENV"] = "1"
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default, and a stage has nothing else to do
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # its default here; said, it is not remarked on at every start
    stack.enter_context(ProcessGuard(mark_environment=True))
    stack.callback(ray.shutdown)  # before the guard and the folder go, also where not all of it starts
    ray.init(
        address="local",
        num_cpus=workers.count * workers.num_cpus,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        logging_level="warning",
        _temp_dir=str(inner),
    )
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if workers.num_gpus > gpus:
        raise UserError(
            f"workers.num_gpus = {workers.num_gpus}: Ray finds {gpus} GPUs on this machine; lower it, or name a "
            "cluster that has them (workers.ray_address)"
        )


def _join(ray: Any, address: str, stack: ExitStack) -> None:
    stack.callback(ray.shutdown)
    try:
        if address != "auto":
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()  # Ray itself tries for minutes
        ray.init(address=address, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"workers.ray_address = {address!r}: no Ray cluster of the same Ray and Python versions answers there "
            f"({error}); this machine has to belong to it (`ray start --address=HOST:PORT`), and where the cluster "
            "asks for a token, RAY_AUTH_MODE=token has to be in the environment"
        ) from error


@contextmanager
def _same_termination() -> Iterator[None]:
    """SIGTERM means afterwards what it meant: Ray would exit the process at once, where a stage closes its files."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
