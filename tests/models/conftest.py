"""A random Llama with a character tokenizer, saved as a model folder. Its pad id equals its EOS id."""

import string
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EOS, UNK, TAG = "<eos>", "<unk>", "ки"


def make_tokenizer() -> PreTrainedTokenizerFast:
    characters = [UNK, EOS, TAG, "<extra_0>", *string.digits, *string.ascii_letters, *" +-*/=.\n?:"]
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate(characters)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"ки|<extra_0>|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, unk_token=UNK)


def make_model(seed: int = 0, *, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        pad_token_id=1,
        eos_token_id=1,
        bos_token_id=None,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def untied_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    make_model(1, tied=False).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
