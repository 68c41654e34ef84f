"""Model folders that would run code when loaded: refused, and the code does not run."""

import contextlib
import json
import os
import pickle
import zipfile

import pytest
import torch
from transformers import AutoModelForTokenClassification

from grpo_pipeline.config import ModelConfig, RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.folders import check_model_folder
from grpo_pipeline.models.importing import import_model
from grpo_pipeline.models.loading import (
    load_policy,
    load_pretrained,
    load_tokenizer,
    resolve_model,
)
from grpo_pipeline.models.reward import RewardModel
from tests.training.toy_policies import save_policy


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "the-code-ran"


@pytest.fixture
def folder(tmp_path):
    return save_policy(tmp_path / "model")


def test_the_bomb_is_one(tmp_path, trace):
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "weights.ckpt", "model.pkl"])
def test_pickled_weights_are_refused(folder, trace, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({"model.embed_tokens.weight": Bomb(trace)}))
    loads = [
        lambda: resolve_model(ModelConfig(path=str(folder))),
        lambda: check_model_folder(folder),
        lambda: load_policy(folder, device="cpu"),
        lambda: load_pretrained(AutoModelForTokenClassification, folder, device="cpu"),
    ]
    for load in loads:
        with pytest.raises(UserError, match=rf"weights only in pickled form \({name}\), which is never loaded"):
            load()
    for load in (lambda: RewardModel.from_policy(folder, "prm", 0), lambda: RewardModel.load(folder)):
        with pytest.raises(UserError):
            load()
    assert not trace.exists()


def test_pickled_weights_are_not_imported_either(folder, trace, tmp_path):
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": torch.zeros(2)}, folder / "pytorch_model.bin")
    with zipfile.ZipFile(folder / "pytorch_model.bin", "a") as archive:
        archive.writestr("archive/extra.pkl", pickle.dumps(Bomb(trace)))
    with pytest.raises(UserError, match="cannot be read as a causal language model"):
        import_model(str(folder), tmp_path / "out", dtype="float32", trust_remote_code=False)
    assert not (tmp_path / "out").exists()
    assert not trace.exists()


def test_pickled_files_beside_safetensors_are_left_alone(folder, trace):
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "adapter_model.bin", "tokenizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(Bomb(trace)))
    load_policy(folder, device="cpu")
    load_tokenizer(folder)
    assert not trace.exists()


def test_a_pickled_adapter_is_not_loaded(folder, trace):
    """transformers attaches adapters that lie beside a model by itself."""
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": str(folder)})
    )
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"q_proj.lora_A.weight": Bomb(trace)}))
    with pytest.raises(UserError):
        load_policy(folder, device="cpu")
    assert not trace.exists()


def test_code_that_a_model_brings_is_not_run(folder, trace):
    assert ModelConfig().trust_remote_code is False
    code = f"import os\nos.mkdir({str(trace)!r})\n"
    for name in ("modeling_bomb.py", "configuration_bomb.py", "tokenization_bomb.py"):
        (folder / name).write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "bomb",
        "auto_map": {
            "AutoConfig": "configuration_bomb.BombConfig",
            "AutoModelForCausalLM": "modeling_bomb.BombForCausalLM",
            "AutoModelForTokenClassification": "modeling_bomb.BombForTokenClassification",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: not a usable model configuration"):
        load_policy(folder, device="cpu")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "BombTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_bomb.Bomb", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with contextlib.suppress(UserError):
        load_tokenizer(folder)  # the plain tokenizer of tokenizer.json, or an error
    assert not trace.exists()


@pytest.mark.parametrize("name", ["..", ".", "../x", "/x", "a/b", "", "a\\b", "-x"])
def test_a_runs_name_stays_below_the_root(name):
    with pytest.raises(ValueError, match="name"):
        RunConfig(name=name)


def test_templates_cannot_reach_python(folder):
    """Chat templates are jinja2 programs of whoever made the model; transformers runs them in a sandbox."""
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(Exception, match=r"(?i)unsafe|undefined"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
