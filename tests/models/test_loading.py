import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from grpo_pipeline.config import ModelConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.loading import (
    ModelInfo,
    load_policy,
    load_tokenizer,
    read_info,
    resolve_model,
    save_model,
)
from grpo_pipeline.models.reward import RewardModel


@pytest.fixture
def copy(policy_folder, tmp_path):
    return shutil.copytree(policy_folder, tmp_path / "model")


def test_content_id_ignores_cards_and_names_but_not_weights(copy, policy_folder):
    before = content_id(policy_folder)
    assert len(before) == 16
    (copy / "README.md").write_text("another card")
    (copy / "grpo_pipeline.json").write_text('{"kind": "policy", "parents": [], "settings": {}}')
    assert content_id(copy) == before
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert content_id(copy) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_content_id_depends_on_configuration_and_tokenizer(copy, policy_folder, name):
    (copy / name).write_text((copy / name).read_text() + " ")
    assert content_id(copy) != content_id(policy_folder)


def test_content_id_of_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="no model here"):
        content_id(tmp_path)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "no weights"),
    ],
)
def test_what_is_missing_is_named(copy, gone, message):
    (copy / gone).unlink()
    with pytest.raises(UserError, match=message):
        load_policy(copy)


def test_pickled_weights_are_refused(copy):
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin.*never loaded"):
        load_policy(copy)


def test_broken_weights_are_a_users_error(copy):
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_policy(copy)


def test_broken_configuration_is_a_users_error(copy):
    (copy / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        load_policy(copy)


def test_policy_has_dropout_off_and_is_float32_on_the_cpu(policy_folder):
    model = load_policy(policy_folder, device="cpu")
    assert model.dtype == torch.float32
    assert not model.training
    assert model.config.attention_dropout == 0.0
    assert load_policy(policy_folder, device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_tokenizer_without_pad_token_pads_with_eos(copy):
    tokenizer = load_tokenizer(copy)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1
    assert tokenizer.decode(tokenizer.encode("3 + 4 = 7\n")) == "3 + 4 = 7\n"


def test_saved_model_loads_with_plain_transformers_and_says_what_it_is(policy_folder, tmp_path):
    model, tokenizer = load_policy(policy_folder), load_tokenizer(policy_folder)
    parent = content_id(policy_folder)
    saved = save_model(
        model, tokenizer, tmp_path / "m", kind="policy", parents=[parent], settings={"steps": 3}, card=None
    )
    assert saved == content_id(tmp_path / "m")
    assert read_info(tmp_path / "m") == ModelInfo("policy", (parent,), {"steps": 3})
    assert parent in (tmp_path / "m" / "README.md").read_text()
    assert not list((tmp_path / "m").glob("*.bin"))
    ids = torch.tensor([[5, 6, 7]])
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    torch.testing.assert_close(plain(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_a_broken_description_is_named(copy):
    (copy / "grpo_pipeline.json").write_text('{"kind": "policy"}')
    with pytest.raises(UserError, match=r"grpo_pipeline\.json"):
        read_info(copy)


def test_resolve_local_folder(policy_folder):
    assert resolve_model(ModelConfig(path=str(policy_folder))) == policy_folder


def test_resolve_missing_path(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        resolve_model(ModelConfig(path=str(tmp_path / "nowhere")))


def test_resolve_hub_id_without_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot be had from Hugging Face"):
        resolve_model(ModelConfig(path="nobody/no-such-model"))


def test_resolve_hub_id_asks_for_safetensors_only(monkeypatch, policy_folder):
    asked = {}

    def snapshot_download(repo_id, **kwargs):
        asked.update(kwargs, repo_id=repo_id)
        return str(policy_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve_model(ModelConfig(path="some/model", revision="abc")) == policy_folder
    assert (asked["repo_id"], asked["revision"]) == ("some/model", "abc")
    assert "*.safetensors" in asked["allow_patterns"]
    assert not [p for p in asked["allow_patterns"] if p.endswith((".bin", ".pt", ".py"))]


def test_gpu_that_is_not_there(policy_folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU"):
        load_policy(policy_folder, device="cuda:0")


def test_a_tokenizer_without_eos_is_refused(copy):
    tokenizer = load_tokenizer(copy)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(copy)
    with pytest.raises(UserError, match="no EOS token"):
        load_tokenizer(copy)


def test_missing_weights_are_named(copy):
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(copy)
    with pytest.raises(UserError, match=r"backbone lacks .*up_proj"):
        RewardModel.from_policy(copy, "prm", 0)
