"""Files of records: .jsonl, .json (a list) and .parquet, read and written whole."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.forms import find_form
from grpo_pipeline.exchange.records import Record
from grpo_pipeline.problems.records import SUFFIXES, read_records


def read_form(path: Path, form: str) -> list[Record]:
    """The records of a file in a form.

    Raises:
        UserError: Naming file, line and field of what is not as the form has it.
    """
    reader = find_form(form)
    if not path.is_file():
        raise UserError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    return list(reader.read(read_records(str(path))))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows in the form of the path's suffix, all or nothing.

    Raises:
        UserError: Another suffix, or the file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: the output must end in {', '.join(SUFFIXES)}")
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".parquet":
            import polars as pl

            pl.DataFrame(list(rows), infer_schema_length=None).write_parquet(part, compression="zstd")
        else:
            texts = (json.dumps(row, ensure_ascii=False) for row in rows)
            text = "".join(f"{line}\n" for line in texts)
            if path.suffix.lower() == ".json":
                text = json.dumps(list(rows), ensure_ascii=False, indent=2) + "\n"
            # A lone surrogate that came in through a JSON escape leaves as it came.
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
    finally:
        part.unlink(missing_ok=True)
