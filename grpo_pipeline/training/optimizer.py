"""AdamW on named parameters: schedule, clipping, and a state without pickle."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from grpo_pipeline.config import OptimizerConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.training.processes import like, whole


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The learning rate of an optimizer step: a pure function of it, so a resumed run has nothing to restore.

    Args:
        config: Peak rate, schedule, warm-up.
        step: From 1.
        total: Optimizer steps of the whole run. Linear and cosine reach 0 one step after the last.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    done = (step - 1 - config.warmup_steps) / max(1, total - config.warmup_steps)
    done = min(1.0, done)
    return config.lr * ((1 - done) if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


class Optimizer:
    """AdamW over the trainable parameters of a model.

    Matrices decay, vectors (norms, biases) do not. Gradients are what `backward` has added up over the
    optimizer step; there is no division here.

    Args:
        parameters: Name -> trainable parameter, names as in checkpoints.
        config: Settings.
        total: Optimizer steps of the whole run, for the schedule.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig, total: int) -> None:
        self.parameters = dict(parameters)
        self.config = config
        self.total = total
        self.steps = 0
        groups = [
            {"params": [p for p in self.parameters.values() if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in self.parameters.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        # One kernel for all parameters; torch has it for these devices.
        self._fused = all(p.device.type in ("cpu", "cuda") for p in self.parameters.values())
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, fused=self._fused
        )

    @property
    def next_learning_rate(self) -> float:
        """The rate that the next `step` will use."""
        return learning_rate(self.config, self.steps + 1, self.total)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Clip, update, forget the gradients; returns the gradient norm before clipping.

        A step whose rows have all dropped out leaves no gradient: it counts, and changes nothing.

        Raises:
            UserError: If the gradient is not finite; the weights are then as before.
        """
        limit = self.config.max_grad_norm
        total = nn.utils.clip_grad_norm_(self.parameters.values(), math.inf if limit is None else limit)
        norm = float(whole(total))
        if not math.isfinite(norm):
            raise UserError(
                f"the gradient of optimizer step {self.steps + 1} is {norm}; lower the learning rate "
                f"({self.config.lr:g}) or look for infinite rewards"
            )
        rate = self.next_learning_rate  # before the count goes up
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.steps += 1
        self.zero_grad()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state as named tensors, for a safetensors file; whole ones where they are sharded."""
        named = {id(parameter): name for name, parameter in self.parameters.items()}
        return {
            f"{named[id(parameter)]}/{key}": whole(value)
            for parameter, state in self._adamw.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take up what `tensors` gave after `steps` steps."""
        self.steps = steps
        self._adamw.state.clear()
        for key, value in tensors.items():
            name, kind = key.rsplit("/", 1)
            parameter = self.parameters[name]
            state: dict[str, Any] = self._adamw.state[parameter]
            if kind == "step":
                # The step count is beside the parameter in the fused kernel, else on the CPU.
                state[kind] = value.to(parameter.device if self._fused else "cpu", copy=True)
            else:
                state[kind] = like(value, parameter).clone()


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter for those that have gradients; shared ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def load_weights(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Put a checkpoint's weights in place."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(tensors[name], parameter))
