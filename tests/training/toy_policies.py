"""Small models and rows for tests of the trainer."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_pipeline.training.batching import Row, response_row


def make_model(seed: int = 0, vocab: int = 37, kv_heads: int = 1, dtype: torch.dtype = torch.float64):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,  # the trap: padding must be known by place
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    _norm_in_full_precision(model)
    return model.to(dtype).eval()


def _norm_in_full_precision(model):
    """Llama's norm rounds to float32 whatever the model's type; float64 comparisons need it exact."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                setattr(module, name, torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon))


def make_rows(seed: int = 0, groups: int = 3, per_group: int = 4, vocab: int = 37) -> list[Row]:
    """Rows of unequal prompts and responses; EOS (= pad) stands inside some of them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(groups):
        prompt = rng.integers(0, vocab, rng.integers(1, 9))
        rows += [response_row(prompt, rng.integers(0, vocab, rng.integers(1, 12))) for _ in range(per_group)]
    return rows
