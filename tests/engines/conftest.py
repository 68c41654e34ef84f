import pytest
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
