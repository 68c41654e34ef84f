"""The processes that train together: what each one does, and how they put their parts together.

Every process knows all rows of an optimizer step and each token's share in the whole step's loss, so parts of
the loss, gradients and metrics are only ever *summed* over processes. Work is divided in two places: problems
of an exploration step (`Explorer`), and micro-batches (`training.loop`).

Two ways to hold the weights, as the launcher's configuration says:

- replicated (`configs/accelerate/ddp.yaml`): every process has the whole model, and gradients are summed once an
  optimizer step. Processes may run unequal numbers of micro-batches, and a model that a step leaves out (the
  policy in a critic's warm-up) costs nothing; torch's DDP wrapper wants equal numbers and a pass of every model.
- sharded (`configs/accelerate/fsdp2.yaml`): FSDP2 cuts weights, gradients and optimizer state. A forward pass is
  then a collective, so all processes run equally many.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Processes:
    """This process and its fellows; without a launch it is alone, and every method then does nothing.

    Attributes:
        rank: This process, in [0, count).
        count: How many train together.
        is_sharded: Whether weights are cut over them.
    """

    rank = 0
    count = 1
    is_sharded = False

    @property
    def is_main(self) -> bool:
        """Whether it is this process that writes files."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The value of every process, in the order of ranks."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The main process's value."""
        return value

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        return tensor

    def shard(self, module: nn.Module) -> None:
        """Cut a module's weights over the processes, where this is asked for."""

    def load_device(self, device: str) -> str:
        """Where a model is loaded to: before it is sharded, no GPU need hold the whole of it."""
        return "cpu" if self.is_sharded else device

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return max(self.gather(flag))

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of a list."""
        return list(items[self.rank :: self.count])

    def from_main(self, make: Callable[[], T]) -> T:
        """What `make` gives in the main process, the only one that calls it."""
        if self.count == 1:
            return make()
        return self.broadcast(make() if self.is_main else None)  # type: ignore[return-value]

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over processes; a parameter without a gradient in every process keeps none.

        Sharded gradients were summed by the backward pass.
        """
        if self.is_sharded:
            return
        present = [any(flags) for flags in zip(*self.gather([p.grad is not None for p in parameters]), strict=True)]
        for bucket in _buckets([p for p, there in zip(parameters, present, strict=True) if there]):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = self.add(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            for parameter, total in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                parameter.grad = total.view_as(parameter)


class LaunchedProcesses(Processes):
    """Processes that `accelerate launch` started, connected by gloo on CPUs and by NCCL on GPUs.

    Args:
        on_cpu: Train on the CPU even where there are GPUs.
    """

    def __init__(self, on_cpu: bool) -> None:
        from accelerate import PartialState

        self._state = PartialState(cpu=on_cpu)
        self.rank, self.count = self._state.process_index, self._state.num_processes
        self.is_sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        # Every process reads the whole model; transformers would give all but the first one empty weights.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        self._mesh: Any = None

    def gather(self, value: T) -> list[T]:
        """See `Processes.gather`."""
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """See `Processes.broadcast`."""
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def add(self, tensor: Tensor) -> Tensor:
        """See `Processes.add`."""
        torch.distributed.all_reduce(tensor)
        return tensor

    def shard(self, module: nn.Module) -> None:
        """See `Processes.shard`: one FSDP unit for each decoder layer, and one for the rest."""
        if not self.is_sharded:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self._mesh is None:
            self._mesh = init_device_mesh(self._state.device.type, (self.count,))
        options = _fsdp_options() | {"mesh": self._mesh}
        layers = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
        for part in list(module.modules()):
            if type(part).__name__ in layers:
                fully_shard(part, **options)
        # The embeddings and heads: gathered for the whole pass, so that a head may be read at its end.
        fully_shard(module, **options | {"reshard_after_forward": False})

    def close(self) -> None:
        """Leave the group."""
        self._state.destroy_process_group()


ALONE = Processes()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a weight, gradient or moment, in every process; a collective where it is sharded."""
    full: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`whole` of each, detached."""
    return {name: whole(tensor.detach()) for name, tensor in tensors.items()}


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, the same in all processes, cut and placed as `parameter` is."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return tensor.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    placements: Any = parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(parameter.device), mesh, placements, src_data_rank=None)


def _fsdp_options() -> dict[str, Any]:
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from grpo_pipeline.errors import UserError

    plugin = FullyShardedDataParallelPlugin()  # as the launcher's configuration says
    if plugin.fsdp_version != 2:
        raise UserError("training.launcher: FSDP needs fsdp_version: 2 in the accelerate configuration's fsdp_config")
    if os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    else:
        policy = MixedPrecisionPolicy()
    options = {"reshard_after_forward": plugin.reshard_after_forward, "mp_policy": policy}
    # Left out where nothing is offloaded: fully_shard has a default of its own.
    return options | ({"offload_policy": plugin.cpu_offload} if plugin.cpu_offload else {})


def _buckets(parameters: Sequence[nn.Parameter], elements: int = 1 << 25) -> list[list[nn.Parameter]]:
    """Parameters of one type side by side, up to `elements` (128 MB in float32) in a bucket."""
    buckets: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in sorted(parameters, key=lambda p: str(p.dtype)):
        if buckets and buckets[-1][0].dtype == parameter.dtype and filled + parameter.numel() <= elements:
            buckets[-1].append(parameter)
            filled += parameter.numel()
        else:
            buckets.append([parameter])
            filled = parameter.numel()
    return buckets
