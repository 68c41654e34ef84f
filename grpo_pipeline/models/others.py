"""Open anyone's PRM: the model and the form in which it reads solutions."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForTokenClassification

from grpo_pipeline.config import PromptConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.folders import check_model_folder
from grpo_pipeline.models.forms import QwenPrmForm, RlhflowForm, SolutionForm, StepwiseForm, TagForm
from grpo_pipeline.models.loading import load_config, load_tokenizer, pick_device, pick_dtype
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.prompts import PromptBuilder

PrmForm = Literal["own", "trl", "math-shepherd", "rlhflow", "qwen"]


def open_prm(
    folder: Path,
    form: PrmForm,
    *,
    prompt: PromptConfig | None = None,
    examples: Iterable[Mapping[str, Any]] = (),
    dtype: str = "auto",
    device: str = "auto",
) -> tuple[RewardModel, SolutionForm]:
    """Load a PRM of a known form; no code that the folder brings is run.

    Args:
        folder: The model.
        form: own (written by this project), trl (a token classifier of TRL's PRMTrainer), math-shepherd (a language
            model that says + or - at the tag), rlhflow (the same as a chat), qwen (Qwen2.5-Math-PRM).
        prompt: Form own: how the rollouts that it was trained on were prompted; the default template if None.
        examples: Form own: problems to take the prompt's worked examples from, as for `PromptBuilder`.
        dtype: As for `load_policy`.
        device: As for `load_policy`.

    Raises:
        UserError: The folder is not usable, its tokenizer lacks the form's separator, or the prompt cannot be written.
    """
    if form == "qwen":
        model = load_qwen_prm(folder, dtype=dtype, device=device)
    elif form in ("math-shepherd", "rlhflow"):
        model = RewardModel.from_policy(folder, "prm", 0, plus_minus=("+", "-"), dtype=dtype, device=device)
    else:
        model = RewardModel.load(folder, dtype=dtype, device=device)
    tokenizer = model.tokenizer
    written = PromptBuilder(tokenizer, prompt, examples) if prompt is not None and form == "own" else None
    forms: dict[str, SolutionForm] = {
        "own": StepwiseForm(tokenizer, prompt=written),
        "trl": StepwiseForm(tokenizer, template="{question}", trl=True),
        "math-shepherd": TagForm(tokenizer),
        "rlhflow": RlhflowForm(tokenizer),
        "qwen": QwenPrmForm(tokenizer),
    }
    forms[form].encode("1 + 1 = ?", ["2"])  # a tokenizer that lacks the separator is found out before any work
    return model, forms[form]


def load_qwen_prm(folder: Path, *, dtype: str = "auto", device: str = "auto") -> RewardModel:
    """Qwen2.5-Math-PRM's architecture without its remote code: a Qwen2 backbone and a two-layer head of two classes.

    Raises:
        UserError: The folder is not usable, or its weights are not of that architecture.
    """
    check_model_folder(folder)
    tokenizer = load_tokenizer(folder)
    config = load_config(folder)
    config.num_labels = 2
    config.classifier_dropout = 0.0
    where = pick_device(device)
    model = AutoModelForTokenClassification.from_config(config)
    width = config.hidden_size
    model.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
    try:
        problems = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise UserError(f"{folder}: weights do not fit its config.json: {error}") from error
    if problems.missing_keys:
        raise UserError(
            f"{folder}: not a model of Qwen2.5-Math-PRM's form; it lacks {', '.join(problems.missing_keys[:5])}"
        )
    model.to(device=where, dtype=pick_dtype(dtype, where))
    return RewardModel(model, tokenizer, "prm", content_id(folder))
