"""Models on disk: find, check, load and save them.

A model is a folder of safetensors, configuration and tokenizer that plain transformers loads.
`grpo_pipeline.json` beside them says what it is and what it was made from. Nothing is ever unpickled: a
folder that has its weights only as .bin or .pt is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo_pipeline.config import ModelConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.folders import check_model_folder, check_tokenizer_files, find_model_folder
from grpo_pipeline.models.sequences import eos_ids
from grpo_pipeline.store.filesystem import apply_umask

ModelKind = Literal["policy", "prm", "orm", "pairwise", "critic"]

INFO_FILE = "grpo_pipeline.json"
_HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_DROPOUTS = (
    "attention_dropout",
    "classifier_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "summary_first_dropout",
)


@dataclass(frozen=True)
class ModelInfo:
    """What `grpo_pipeline.json` says of a model.

    Attributes:
        kind: What the model is for.
        parents: Content ids of the models and fingerprints of the data that it was made from.
        settings: What a reader needs to use it again (heads, separators) and how it was trained.
    """

    kind: ModelKind
    parents: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def resolve_model(config: ModelConfig) -> Path:
    """The local folder of a configured model; a Hugging Face id is downloaded (safetensors only).

    Raises:
        UserError: The folder does not exist, is incomplete or holds only pickled weights, or the download failed.
    """
    folder = find_model_folder(config.path)
    if folder is None:
        folder = _download(config)
        check_model_folder(folder)
    return folder


def load_policy(
    folder: Path, *, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> PreTrainedModel:
    """Load a causal language model in evaluation mode (dropout off), on its device.

    Args:
        folder: A model folder (see `resolve_model`).
        dtype: float32, bfloat16, float16, or auto (bfloat16 on a GPU that has it, else float32).
        device: cpu, cuda, cuda:N, or auto.
        trust_remote_code: Run Python code that the folder brings.

    Raises:
        UserError: The folder is incomplete, broken, pickled, or holds another kind of model.
    """
    info = read_info(folder)
    if info is not None and info.kind != "policy":
        raise UserError(f"{folder}: a {info.kind} model, where a policy (causal language model) is needed")
    check_model_folder(folder)
    config = load_config(folder, trust_remote_code=trust_remote_code)
    # A classifier with tied embeddings would load without a missing weight, its head silently dropped.
    if classifiers := [name for name in config.architectures or [] if name.endswith("Classification")]:
        raise UserError(f"{folder}: a {classifiers[0]}, where a policy (causal language model) is needed")
    model, missing = load_pretrained(
        AutoModelForCausalLM, folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code, config=config
    )
    if missing:
        raise UserError(f"{folder}: not a complete causal language model; it lacks {', '.join(missing[:5])}")
    return model


def load_pretrained(
    auto_class: Any,
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    config: Any = None,
) -> tuple[PreTrainedModel, list[str]]:
    """`auto_class.from_pretrained` on a local folder, safetensors only; also gives the names of missing weights.

    Raises:
        UserError: The folder is incomplete, or its files are broken or of no known architecture.
    """
    check_model_folder(folder)
    where = pick_device(device)
    try:
        with _quiet():
            model, loading = auto_class.from_pretrained(
                str(folder),
                config=config if config is not None else load_config(folder, trust_remote_code=trust_remote_code),
                dtype=pick_dtype(dtype, where),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{folder}: cannot be loaded as {auto_class.__name__}: {error}") from error
    model.to(where)
    model.eval()
    return cast(PreTrainedModel, model), sorted(loading["missing_keys"])


def load_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The model's configuration with every dropout off: log-probabilities must repeat in RL."""
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder / 'config.json'}: not a usable model configuration: {error}") from error
    for name in _DROPOUTS:
        if getattr(config, name, None):
            setattr(config, name, 0.0)
    return config


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a folder's tokenizer; without a pad token it pads with EOS.

    Padding by EOS is harmless here: no mask in this project is ever derived from token ids.

    Raises:
        UserError: No tokenizer there, or one without EOS token.
    """
    check_tokenizer_files(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: the tokenizer cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no EOS token, so responses could never end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return cast(PreTrainedTokenizerBase, tokenizer)


def read_eos_ids(folder: Path) -> set[int]:
    """Every EOS id of a folder's tokenizer and configuration: what its reward models leave out (`models.sequences`)."""
    config: Any = load_config(folder)
    return eos_ids(cast("int | None", load_tokenizer(folder).eos_token_id), config.eos_token_id)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    kind: ModelKind,
    parents: Sequence[str],
    settings: Mapping[str, Any],
    card: str | None = None,
) -> str:
    """Write weights (safetensors), tokenizer, `grpo_pipeline.json` and a card; returns the content id.

    Args:
        model: A transformers model, unwrapped (no DDP, no adapters).
        tokenizer: Its tokenizer.
        folder: Where to; made if absent.
        kind: What the model is for.
        parents: Content ids and fingerprints of what it was made from.
        settings: JSON values: what is needed to use it again, and how it was trained.
        card: Text of README.md; None writes a short one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet():
        model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    info = ModelInfo(kind, tuple(parents), dict(settings))
    text = json.dumps(asdict(info), indent=2, sort_keys=True, ensure_ascii=False)
    (folder / INFO_FILE).write_text(text + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card if card is not None else _card(model, info), encoding="utf-8")
    apply_umask(folder)
    return content_id(folder)


def read_info(folder: Path) -> ModelInfo | None:
    """What `grpo_pipeline.json` says; None for a model that this project did not write."""
    path = folder / INFO_FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return ModelInfo(data["kind"], tuple(data["parents"]), dict(data["settings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a model's description (kind, parents, settings): {error}") from None


def pick_device(device: str) -> torch.device:
    """The torch device for a setting; auto is cuda where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device = {device!r}, but torch sees no GPU; use 'auto' or 'cpu'")
    return torch.device(device)


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch type for a setting; auto is bfloat16 on a GPU that has it, else float32."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return cast(torch.dtype, getattr(torch, dtype))


def _download(config: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [*_HUB_FILES, "*.py"] if config.trust_remote_code else _HUB_FILES
    try:
        return Path(snapshot_download(config.path, revision=config.revision, allow_patterns=patterns))
    except HFValidationError:
        raise UserError(f"model.path = {config.path!r}: no such folder (nor is it a Hugging Face id)") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model.path = {config.path!r}: no such folder, and it cannot be had from Hugging Face: {reason}"
        ) from error


def _card(model: PreTrainedModel, info: ModelInfo) -> str:
    parents = "\n".join(f"- `{parent}`" for parent in info.parents) or "- none"
    settings = json.dumps(info.settings, indent=2, sort_keys=True, ensure_ascii=False)
    return (
        f"# {info.kind}\n\n`{type(model).__name__}`, {model.num_parameters():,} parameters, written by grpo-pipeline.\n"
        f"\n## Made from\n\n{parents}\n\n## Settings\n\n```json\n{settings}\n```\n"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and the table of new and unused weights: the caller checks the names itself."""
    verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(transformers.logging.ERROR)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()
