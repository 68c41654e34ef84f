"""Small models and rows for tests of the trainer."""

from pathlib import Path

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def make_tokenizer():
    """Byte-level pieces without merges but one that straddles a line break; EOS is the pad token, as in many models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<eos>", *alphabet])}
    newline, digit = "Ċ", "5"
    vocabulary[digit + newline] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [(digit, newline)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def save_policy(folder: Path, seed: int = 0, tied: bool = False) -> Path:
    """A random policy of 257 tokens that often says digits, line breaks and EOS."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.1,
        attention_dropout=0.25,  # the trap: it must be off while training
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    likely = [*tokenizer.encode("0123456789\n"), tokenizer.eos_token_id]
    with torch.no_grad():
        # Final states lean in one direction, and these tokens' output rows point to it.
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(0.5)
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = -1.0
        model.lm_head.weight[likely, 0] = 1.2
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1.6
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_problems(count: int = 12, split: str = "train") -> pl.DataFrame:
    rows = [
        {
            "problem_id": f"{split}{i:03d}",
            "source": "toy",
            "split": split,
            "question": f"{i} + 1 =",
            "gold_answer": str(i + 1),
            "gold_solution": f"{i} + 1 = {i + 1}\nThe answer is {i + 1}.",
            "meta": None,
        }
        for i in range(count)
    ]
    return pl.DataFrame(rows, schema_overrides={"meta": pl.String})


def parity_checker(golds, texts):
    """Half of all texts are right, whatever they say: rewards that differ within groups, without a real solver."""
    from grpo_pipeline.answers import Check

    for _, text in zip(golds, texts, strict=True):
        right = sum(text.encode()) % 2 == 0
        yield Check(verdict="correct" if right else "wrong", answer=text[:3], reason="parity")
