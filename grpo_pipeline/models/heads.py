"""The output head of a causal language model, for whoever reads hidden states instead of logits."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from grpo_pipeline.errors import UserError


def output_head(model: PreTrainedModel) -> nn.Linear:
    """The projection from hidden states to logits of a causal language model.

    Raises:
        UserError: If the model does more than a linear projection (logit caps or scales, an adapted head).
    """
    config: Any = model.config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise UserError(f"{type(model).__name__} sets {name}: its logits are not a plain projection; not supported")
    head: Any = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UserError(
            f"{type(model).__name__}'s output layer is {type(head).__name__}, not a plain linear layer; "
            "leave it out of training.lora.target_modules"
        )
    return head
