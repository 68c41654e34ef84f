"""Small random models and a byte-pair tokenizer, made on the spot."""

from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

TEXTS = [
    "Tom has 12 apples. He buys 7 more apples and gives 5 to Ann.\nHow many apples has Tom now?\n",
    "12 + 7 = 19\n19 - 5 = 14\nThe answer is 14.",
    "Ein Zug fährt 3 Stunden mit 80 km/h. Wie weit kommt er? 😀 naïve café 数学\n",
]


@cache
def make_tokenizer(vocabulary=320) -> PreTrainedTokenizerFast:
    """Byte-level BPE: characters outside ASCII are spread over several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


def make_model(kind="llama", *, kv_heads=1, seed=0, scale=6.0, vocabulary=None, hidden=96, positions=256, dropout=0.0):
    """A random model; `scale` sharpens the head, so that tokens are neither certain nor uniform."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    sizes = {
        "vocab_size": vocabulary or len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 3,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(head_dim=32, **sizes))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    elif kind == "mistral-sliding":
        model = MistralForCausalLM(MistralConfig(head_dim=32, sliding_window=16, **sizes))
    elif kind == "gpt2":
        names = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer"}
        names |= {"num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
        sizes = {names.get(key, key): value for key, value in sizes.items() if key != "num_key_value_heads"}
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        model = GPT2LMHeadModel(GPT2Config(**sizes, **drops))
    else:
        raise ValueError(kind)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
        for parameter in model.parameters():
            if parameter.dim() == 1 and kind == "qwen2":
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save(folder: Path, **options) -> Path:
    make_model(**options).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def full_logits(model, prompt, response):
    """Logits (T + 1, V) of one uncached forward: row t is the distribution of response token t."""
    ids = torch.tensor([list(prompt) + list(response)])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].double()
    return logits[len(prompt) - 1 :]
