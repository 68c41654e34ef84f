"""What makes two trainings the same one, so that a checkpoint is only taken up by its own."""

import hashlib
import json
from typing import Any

import polars as pl
from pydantic import BaseModel


def run_identity(*parts: BaseModel | pl.DataFrame | str | int | None) -> str:
    """A hash of configurations, ids, seeds and frames.

    Settings that change how often a checkpoint is written, not what is computed, are left out.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(_encode(part) + b"\0")
    return digest.hexdigest()


def _encode(part: BaseModel | pl.DataFrame | str | int | None) -> bytes:
    if isinstance(part, BaseModel):
        values: dict[str, Any] = part.model_dump(mode="json")
        values.pop("checkpoint_every", None)
        return json.dumps(values, sort_keys=True).encode()
    if isinstance(part, pl.DataFrame):
        # polars' own row hashes are not stable between versions; CSV of nested columns is not possible.
        return hashlib.blake2b(part.write_json().encode(), digest_size=16).digest()
    return repr(part).encode()
