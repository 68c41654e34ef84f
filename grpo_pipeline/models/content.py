"""The content id of a model folder: which model is this, whatever the folder is called."""

import hashlib
from pathlib import Path

from grpo_pipeline.errors import UserError

_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
)
"""What determines a model's output; cards, `grpo_pipeline.json` and training leftovers do not."""


def content_id(folder: Path) -> str:
    """16 hexadecimal digits that name the model in a folder by its weights, configuration and tokenizer.

    Names and contents count, cards do not: editing README.md keeps the id, changing one weight does not.

    Raises:
        UserError: The folder does not exist or holds no model.
    """
    files = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{folder}: no model here (no *.safetensors file)")
    total = hashlib.blake2b(digest_size=8)
    for path in files:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, hashlib.blake2b).hexdigest()
        total.update(f"{path.name}\0{digest}\n".encode())
    return total.hexdigest()
