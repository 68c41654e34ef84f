"""One stage at a time on a GPU: a file lock per device, which the kernel frees when its holder dies.

Prefect's concurrency limits ration GPUs too, but know nothing of runs without Prefect, and a killed run's slot
stays taken until its lease is over.
"""

import fcntl
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from grpo_pipeline.errors import UserError

_POLL_S = 0.5
_SECONDS_BETWEEN_MESSAGES = 60.0

_log = logging.getLogger(__name__)


@contextmanager
def hold_devices(device: str, what: str, count: int = 1) -> Iterator[None]:
    """Have a setting's device to oneself while the block runs; a CPU needs no waiting for.

    Args:
        device: cpu, cuda, cuda:N, or auto.
        what: What it is wanted for, as others who wait are told.
        count: Neighbouring GPUs wanted, from that one on.
    """
    from grpo_pipeline.models.loading import pick_device

    place = pick_device(device)
    if place.type != "cuda":
        yield
        return
    import torch

    first = place.index if place.index is not None else torch.cuda.current_device()
    last = min(first + count, torch.cuda.device_count())
    # By the hardware's own number: cuda:0 is another GPU under another CUDA_VISIBLE_DEVICES.
    names = [f"gpu-{torch.cuda.get_device_properties(index).uuid}" for index in range(first, last)]
    with hold_locks(names, what):
        yield


@contextmanager
def hold_locks(names: Sequence[str], what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the locks of all these names; waits for them, saying who has them.

    Args:
        names: What to lock, as file names.
        what: What it is wanted for.
        folder: Where the lock files are; None is a folder of this user on this machine.
    """
    folder = folder or runtime_folder()
    with ExitStack() as stack:
        for name in sorted(names):  # one order for all, so that two never wait for each other
            stack.enter_context(_hold(folder / f"{name}.lock", what))
        yield


def runtime_folder() -> Path:
    """A folder on this machine that only this user may write: under XDG_RUNTIME_DIR, or the temporary folder.

    Raises:
        UserError: The folder in its place belongs to someone else, or others may write it.
    """
    user = os.getuid()
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "grpo-pipeline" if base else Path(tempfile.gettempdir()) / f"grpo-pipeline-{user}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise UserError(
            f"{folder}: GPU locks are kept there, and it is not a folder that only you may write; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )
    return folder


@contextmanager
def _hold(path: Path, what: str) -> Iterator[None]:
    with path.open("a+") as file:
        said = -_SECONDS_BETWEEN_MESSAGES
        while not _try(file):
            if time.monotonic() - said >= _SECONDS_BETWEEN_MESSAGES:
                said = time.monotonic()
                _log.warning("%s: waiting for %s, %s", what, path.stem, _holder(file))
            time.sleep(_POLL_S)
        _write(file, {"pid": os.getpid(), "what": what, "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        try:
            yield
        finally:
            _write(file, {})


def _try(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: IO[str], holder: dict[str, str | int]) -> None:
    file.truncate(0)
    file.write(json.dumps(holder))
    file.flush()


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return f"which {holder['what']} has held since {holder['since']} (process {holder['pid']})"
    except (ValueError, KeyError):  # it was being written just now
        return "which another process holds"
