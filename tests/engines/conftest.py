import pytest
import torch

from tests.engines.tiny_models import TEXTS, make_model, make_tokenizer, save


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def llama():
    return make_model("llama")


@pytest.fixture(scope="session")
def prompts(tokenizer):
    return [tokenizer.encode(text) for text in (TEXTS[0], TEXTS[0][:40], TEXTS[1], TEXTS[2])]


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama"), kind="llama")


@pytest.fixture(scope="session")
def eos_prompt(llama, tokenizer):
    """Of many random prompts the one after which EOS is likeliest."""
    tries = torch.randint(1, len(tokenizer), (2000, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = llama(input_ids=tries, use_cache=False, logits_to_keep=1).logits[:, -1]
    probability = torch.softmax(logits, dim=-1)[:, tokenizer.eos_token_id]
    assert probability.max() > 0.1
    return tries[int(probability.argmax())].tolist()
