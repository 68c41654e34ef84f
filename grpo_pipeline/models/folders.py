"""Model folders as far as files tell: looked at without loading torch, so that a wrong one is refused at once."""

from pathlib import Path

from grpo_pipeline.config import EMBEDDED
from grpo_pipeline.errors import UserError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def find_model_folder(path: str, setting: str = "model.path") -> Path | None:
    """The local folder that a setting names, checked; None where only a Hugging Face id can be meant.

    Raises:
        UserError: The folder is not there though it can be nothing else, or it is incomplete.
    """
    if path == EMBEDDED:
        folder = Path(__file__).resolve().parents[2] / "data" / "tiny"
        if not folder.is_dir():
            raise UserError(
                f"{setting} = 'embedded' needs {folder}, which is not there: run from a checkout of the project, or "
                "make it with `grpo-pipeline make-tiny`"
            )
    else:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            # An id is NAME or OWNER/NAME.
            if path.startswith((".", "/", "~")) or path.count("/") > 1 or folder.exists():
                raise UserError(f"{setting} = {path!r}: no such folder (nor is it a Hugging Face id)")
            return None
    check_model_folder(folder)
    return folder


def check_model_folder(folder: Path) -> None:
    """Raise UserError unless the folder holds configuration, tokenizer and safetensors weights."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise UserError(
                f"{folder}: weights only in pickled form ({', '.join(pickled)}), which is never loaded; "
                "convert them to safetensors first"
            )
        raise UserError(f"{folder}: no weights (*.safetensors)")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json; a model folder is what save_pretrained writes")
    check_tokenizer_files(folder)


def check_tokenizer_files(folder: Path) -> None:
    """Raise UserError unless the folder holds a tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(f"{folder}: no tokenizer ({' or '.join(TOKENIZER_FILES)}); save the model's tokenizer there")
