"""Raw records of a problem source: a local file, a local folder or a Hugging Face data set."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.json_lines import as_object, parse_json, parse_lines, read_text

SUFFIXES = (".parquet", ".jsonl", ".json")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class RawRecord:
    """One record as its source has it, and where it stands (file and line or row)."""

    where: str
    values: Mapping[str, Any]


def read_records(source: str, hub_split: str = "train") -> list[RawRecord]:
    """Every record of a source.

    Args:
        source: A .parquet, .jsonl or .json file (a list of objects), a folder that `datasets` can load, or
            the id of a Hugging Face data set, with ":configuration" where it has several
            ("openai/gsm8k:main").
        hub_split: The split of a data set.

    Raises:
        UserError: Missing or empty source, broken line, wrong form; names file and line.
    """
    path = find_source(source)
    if path is not None and path.is_dir():
        records = _read_data_set(str(path), None, hub_split)
    elif path is not None:
        records = _read_file(path)
    else:
        name, _, configuration = source.partition(":")
        records = _read_data_set(name, configuration or None, hub_split)
    if not records:
        raise UserError(f"{source}: there are no records in it")
    return records


def find_source(source: str) -> Path | None:
    """The local file or folder of a source; None where only a Hugging Face id can be meant.

    Raises:
        UserError: The file is not there though it can be nothing else, or it is no file of problems.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise UserError(f"{source}: no such problem file")
        return path
    if path.exists() or source.startswith((".", "/", "~")):
        what = "is none of these" if path.exists() else "does not exist"
        raise UserError(f"{source}: {what}; problems are read from {', '.join(SUFFIXES)} files or a data set folder")
    return None


def _read_file(path: Path) -> list[RawRecord]:
    if path.suffix.lower() == ".parquet":
        try:
            rows = pl.read_parquet(path, glob=False).iter_rows(named=True)
            return [RawRecord(f"{path}, row {i}", row) for i, row in enumerate(rows)]
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        except pl.exceptions.PolarsError as error:
            raise UserError(f"{path}: not a Parquet file: {error}") from None
    text = read_text(path)
    if path.suffix.lower() == ".jsonl":
        records = [RawRecord(where, values) for where, values in parse_lines(text, path)]
    else:
        records = list(_parse_list(text, path))
    if _SURROGATE.search(text):
        for record in records:
            _check_encodable(record)
    return records


def _check_encodable(record: RawRecord) -> None:
    """Refuse half a surrogate pair: JSON can write one down, but it is no character and no table can hold it."""
    try:
        json.dumps(record.values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(
            f"{record.where}: holds half of a surrogate pair (\\u{ord(half):04x}), which is no character: text was cut "
            "in the middle of one; write the whole character, or leave it out"
        ) from None


def _parse_list(text: str, path: Path) -> Iterator[RawRecord]:
    values = parse_json(text, str(path), "a file with one object a line is named .jsonl")
    if not isinstance(values, list):
        raise UserError(f"{path}: expected a list of objects, found a JSON {type(values).__name__}")
    for number, value in enumerate(values):
        where = f"{path}, record {number}"
        yield RawRecord(where, as_object(value, where))


def _read_data_set(name: str, configuration: str | None, split: str) -> list[RawRecord]:
    import datasets

    try:
        loaded = datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        # Missing id, no network, unknown configuration or split: the first line says which.
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"data set {name}, split {split}: cannot be loaded: {reason}") from error
    return [RawRecord(f"{name}[{split}], row {i}", row) for i, row in enumerate(loaded)]
