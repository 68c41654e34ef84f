"""What makes two trainings the same one, so that a checkpoint is only taken up by its own."""

import hashlib
import json
from typing import Any

import polars as pl
from pydantic import BaseModel

from grpo_pipeline.config import NO_NUMBERS


def run_identity(*parts: BaseModel | pl.DataFrame | str | int | None) -> str:
    """A hash of configurations, ids, seeds and frames.

    Settings that change nothing in what is computed are left out (`config.NO_NUMBERS`): a checkpoint can be taken
    up by another number of processes.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(_encode(part) + b"\0")
    return digest.hexdigest()


def _encode(part: BaseModel | pl.DataFrame | str | int | None) -> bytes:
    if isinstance(part, BaseModel):
        values: dict[str, Any] = part.model_dump(mode="json", exclude=set(NO_NUMBERS))
        return json.dumps(values, sort_keys=True).encode()
    if isinstance(part, pl.DataFrame):
        # polars' own row hashes are not stable between versions; CSV of nested columns is not possible.
        return hashlib.blake2b(part.write_json().encode(), digest_size=16).digest()
    return repr(part).encode()
