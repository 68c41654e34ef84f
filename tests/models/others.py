"""Tiny models of others' PRM forms, written to folders as their authors publish them."""

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2Model

from tests.models.conftest import make_model, make_tokenizer

CHAT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ '<eos>' }}{% endfor %}"
CHAT += "{% if add_generation_prompt %}a:{% endif %}"


def save_chat_model(folder):
    """A language model with a chat template, as RLHFlow's PRMs are."""
    make_model(2).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)


def save_qwen_prm(folder):
    """A model of Qwen2.5-Math-PRM's form; returns its backbone and its head."""
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        architectures=["Qwen2ForProcessRewardModel"],
        auto_map={"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"},
    )
    backbone = Qwen2Model(config)
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    state = {f"model.{name}": tensor for name, tensor in backbone.state_dict().items()}
    state |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    state["lm_head.weight"] = torch.zeros(96, 32)  # the published weights have an unused one
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    config.save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra_0>"]})
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return backbone.eval(), head
