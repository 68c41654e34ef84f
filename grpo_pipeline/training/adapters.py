"""LoRA: low-rank adapters in place of full weights, with the base model as the reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grpo_pipeline.config import LoraConfig
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.training.processes import whole


def add_adapters(model: Any, config: LoraConfig, trained: nn.Module | None = None, *, seed: int) -> Any:
    """Put adapters into a model's linear layers and freeze the rest.

    Args:
        model: A transformers model; its layers are replaced in place, and it stays usable as before.
        config: Rank, scale and layers.
        trained: A module (a reward head) that stays trainable as it is.
        seed: Seed of the adapters' first weights: a run's result must not depend on what was drawn before it.

    Returns:
        The peft wrapper, which `without_adapters` and `merge_adapters` take.
    """
    import peft

    targets = config.target_modules if isinstance(config.target_modules, str) else list(config.target_modules)
    kept = [name for name, module in model.named_modules() if module is trained]
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        exclude_modules=kept or None,
        lora_dropout=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "adapters"))
        wrapper = peft.get_peft_model(model, adapters)
    if trained is not None:
        trained.requires_grad_(True)
    return wrapper


@contextmanager
def without_adapters(wrapper: Any) -> Iterator[None]:
    """The base model inside the block: the reference policy, for the price of no second model."""
    with wrapper.disable_adapter():
        yield


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight with its adapter added in, one at a time, named as in the model without adapters.

    A tied head is named once, as in a model's file. The model itself stays as it is.
    """
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    for name, parameter in model.named_parameters():
        owner = next((owner for owner in adapted if name.startswith(f"{owner}.")), None)
        weight = whole(parameter.detach())
        if owner is None:
            yield name, weight
        elif name == f"{owner}.base_layer.weight":
            module: Any = adapted[owner]
            deltas = [whole(module.get_delta_weight(adapter).detach()) for adapter in module.active_adapters]
            yield f"{owner}.weight", sum(deltas, start=weight)
        elif name.startswith(f"{owner}.base_layer."):
            yield name.replace(".base_layer.", "."), weight


def merge_adapters(wrapper: Any) -> Any:
    """Add the adapters into the weights; returns the plain model again, for saving."""
    return wrapper.merge_and_unload()
