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
    files = [path for path in (folder / "generation_config.json", folder / "config.json") if path.is_file()]
    named = [json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") for path in files]
    return _collect([tokenizer.eos_token_id, *named])


def _collect(values: list[Any]) -> frozenset[int]:
    lists = [value if isinstance(value, list | tuple) else [value] for value in values if value is not None]
    return frozenset(token for ids in lists for token in ids)
