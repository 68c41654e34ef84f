"""One forward pass of any transformers causal language model with a cache."""

import inspect
from typing import Any

import torch

from grpo_pipeline.errors import UserError


def forward_logits(
    model: Any,
    input_ids: torch.Tensor,
    cache: Any,
    *,
    position_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    logits_to_keep: int | torch.Tensor = 1,
) -> torch.Tensor:
    """Logits of some positions, with keys and values going into `cache`.

    Args:
        model: A transformers causal language model.
        input_ids: (B, T) the tokens that the cache has not seen.
        cache: A transformers Cache.
        position_ids: (B, T) positions of these tokens; None counts on from the cache's length.
        attention_mask: (B or 1, 1, T, cache + T) mask in the form that the model's attention takes; None is causal.
        logits_to_keep: How many last positions, or a (K,) tensor of positions in T.

    Returns:
        (B, K, V) logits in the model's type.
    """
    arguments = {cache_argument(model): cache, "use_cache": True, "logits_to_keep": logits_to_keep}
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    logits: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask, **arguments).logits
    return logits


def cache_argument(model: Any) -> str:
    """Name of the forward's cache parameter: ``cache``, or ``past_key_values`` before transformers 5.2x."""
    names = inspect.signature(type(model).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in names:
            return name
    raise UserError(f"{type(model).__name__} takes no key-value cache; the transformers engine cannot decode with it")
