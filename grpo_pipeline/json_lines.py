"""Files with one JSON object a line, read with errors that name file and line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_pipeline.errors import UserError


def read_text(path: Path) -> str:
    """A file's text, UTF-8 with or without a byte order mark.

    Raises:
        UserError: It is not there, is a folder, may not be read, is not UTF-8, or holds nothing but white space.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder; give a file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    return text


def parse_lines(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each object stands ("FILE, line 3") and the object; empty lines are passed over.

    Raises:
        UserError: A line is no JSON object.
    """
    # Only line feeds end a line: JSON strings may hold U+2028 and its like.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        yield where, as_object(parse_json(line, where, "write one object a line"), where)


def parse_json(text: str, where: str, remedy: str) -> Any:
    """The value of a JSON text.

    Raises:
        UserError: It is no JSON, or nested too deeply to be read; names `where` and ends in `remedy`.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"{where}, line {error.lineno}" if error.lineno > 1 else where
        raise UserError(f"{at}: broken JSON: {error}; {remedy}") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise UserError(f"{where}: JSON that cannot be read: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: JSON that is nested too deeply to be read") from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    """The value, if it is a JSON object; UserError naming `where` if not."""
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
