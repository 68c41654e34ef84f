"""Which token ids end a response: all that the model's files name."""

import json
from pathlib import Path
from typing import Any

from grpo_pipeline.engines.protocol import TokenizerLike


def model_eos_ids(model: Any, tokenizer: TokenizerLike) -> frozenset[int]:
    """EOS ids of a loaded model's generation config and config, and of the tokenizer."""
    holders = (getattr(model, "generation_config", None), model.config, tokenizer)
    return _collect([getattr(holder, "eos_token_id", None) for holder in holders])


def folder_eos_ids(folder: Path, tokenizer: TokenizerLike) -> frozenset[int]:
    """The same from a model folder's files."""
    values = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            values.append(json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id"))
    return _collect(values)


def _collect(values: list[Any]) -> frozenset[int]:
    found: set[int] = set()
    for value in values:
        if value is not None:
            found.update(value if isinstance(value, list | tuple) else [value])
    return frozenset(found)
