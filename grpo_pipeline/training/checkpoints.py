"""Checkpoints that resume to the same numbers: safetensors and JSON, written atomically, never pickled.

A checkpoint is a folder ``step-00000010`` with `tensors.safetensors` (weights, optimizer moments, RNG state) and
`state.json` (counters, ids, metrics so far). It is built beside its place, fsynced and renamed, so a folder of
that name is always whole.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_pipeline.errors import UserError
from grpo_pipeline.store.filesystem import apply_umask

TENSORS, STATE = "tensors.safetensors", "state.json"
_RNG_CPU, _RNG_CUDA = "rng/cpu", "rng/cuda"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's content.

    Attributes:
        step: The step after which it was taken.
        tensors: Name -> tensor, on the CPU.
        state: JSON values.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], run: str) -> Path:
    """Write a checkpoint and delete the older ones of the folder.

    Args:
        folder: Where checkpoints of this training are.
        step: The step it was taken after.
        tensors: Name -> tensor; torch's RNG state is added.
        state: JSON values.
        run: Identifies the training (configuration, data, models): another one's checkpoint is never taken up.
    """
    final = folder / f"step-{step:08d}"
    staging = folder / f".step-{step:08d}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    rng = {_RNG_CPU: torch.get_rng_state()}
    if torch.cuda.is_available():
        rng[_RNG_CUDA] = torch.cuda.get_rng_state()
    # A copy of each: safetensors refuses tensors that share memory (tied embeddings).
    kept = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in {**tensors, **rng}.items()}
    save_file(kept, staging / TENSORS)
    text = json.dumps({"step": step, "run": run, "state": state}, allow_nan=True)
    (staging / STATE).write_text(text, encoding="utf-8")
    apply_umask(staging)
    for path in (staging / TENSORS, staging / STATE, staging):
        _fsync(path)
    if final.exists():
        shutil.rmtree(final)
    staging.rename(final)
    _fsync(folder)
    for older in _checkpoints(folder):
        if older != final:
            shutil.rmtree(older)
    return final


def load_checkpoint(folder: Path, run: str) -> Checkpoint | None:
    """The newest checkpoint, or None; restores torch's RNG state.

    Raises:
        UserError: If it belongs to another training, or its files cannot be read.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    newest = found[-1]
    try:
        record = json.loads((newest / STATE).read_text(encoding="utf-8"))
        tensors = load_file(newest / TENSORS)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{newest}: the checkpoint cannot be read ({error}); delete the folder to start anew"
        ) from error
    if record["run"] != run:
        raise UserError(f"{newest}: a checkpoint of another configuration; delete the folder to start anew")
    torch.set_rng_state(tensors.pop(_RNG_CPU))
    cuda = tensors.pop(_RNG_CUDA, None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    return Checkpoint(record["step"], tensors, record["state"])


def section(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors under ``name/``, without that prefix."""
    return {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}


def prefixed(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with ``name/`` before each name."""
    return {f"{name}/{key}": value for key, value in tensors.items()}


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if folder.is_dir() else []


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
