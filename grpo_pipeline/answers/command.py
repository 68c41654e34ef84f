"""`grpo-pipeline check FILE.jsonl`: verdicts for a file of answers."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_pipeline.answers.many import check_many
from grpo_pipeline.answers.verdicts import CHECKER_VERSION, REASONS, Check, Mode, count_reasons
from grpo_pipeline.errors import UserError
from grpo_pipeline.json_lines import parse_lines, read_text

MODES = ("answer", "solution")


def check_command(file: Path, out: Path | None) -> None:
    """Check a file's answers and print the counts; the verdicts go to `out` if given."""
    show_counts(check_file(file, out), Console())


def check_file(path: Path, out: Path | None) -> list[Check]:
    """Check every row of a JSONL file; write the rows with answer, verdict and reason to `out` if given.

    Raises:
        UserError: the file is missing or a row is not usable; nothing is written then.
    """
    if out is not None and out.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"{out}: the output must end in .jsonl or .parquet, not {out.suffix or 'nothing'!r}")
    rows = read_rows(path)
    checks = check_many(
        [row["gold"] for row in rows],
        [row["pred"] for row in rows],
        [_mode(row) for row in rows],
        progress=len(rows) > 10_000,
    )
    if out is not None:
        write_checks(out, rows, checks)
    return checks


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file, each with the strings gold and pred.

    Raises:
        UserError: naming file, line, field and what to do.
    """
    return [_row(where, row) for where, row in parse_lines(read_text(path), path)]


def _row(where: str, row: dict[str, Any]) -> dict[str, Any]:
    for field in ("gold", "pred"):
        if field not in row:
            raise UserError(f"{where}: the field {field!r} is missing; its fields are {sorted(row)}")
        if not isinstance(row[field], str):
            kind = type(row[field]).__name__
            raise UserError(f"{where}, field {field!r}: a string is needed, not {kind}; write it in quotation marks")
    if row.get("mode", "solution") not in MODES:
        raise UserError(f"{where}, field 'mode': {row['mode']!r} is unknown; write 'answer' or 'solution'")
    return row


def _mode(row: dict[str, Any]) -> Mode:
    return "answer" if row.get("mode") == "answer" else "solution"


def write_checks(out: Path, rows: list[dict[str, Any]], checks: list[Check]) -> None:
    """Write the rows with answer, verdict, reason and checker_version, all or nothing.

    Raises:
        UserError: the file cannot be written.
    """
    added = [
        {"answer": c.answer, "verdict": c.verdict, "reason": c.reason, "checker_version": CHECKER_VERSION}
        for c in checks
    ]
    partial = out.with_name(f".{out.name}.partial")
    try:
        if out.suffix == ".jsonl":
            merged = (json.dumps({**row, **extra}, ensure_ascii=False) for row, extra in zip(rows, added, strict=True))
            # A lone surrogate may come in through a JSON escape and has no UTF-8 form; it leaves as it came.
            partial.write_text("".join(f"{line}\n" for line in merged), encoding="utf-8", errors="backslashreplace")
        else:
            _write_parquet(partial, rows, added)
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); choose another place with --out") from None
    finally:
        partial.unlink(missing_ok=True)


def _write_parquet(path: Path, rows: list[dict[str, Any]], added: list[dict[str, Any]]) -> None:
    import polars as pl

    columns: dict[str, list[str | None]] = {name: [_clean(row[name]) for row in rows] for name in ("gold", "pred")}
    columns["mode"] = [_mode(row) for row in rows]
    for name in ("answer", "verdict", "reason", "checker_version"):
        columns[name] = [_clean(row[name]) for row in added]
    pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)).write_parquet(path, compression="zstd")


def _clean(text: str | None) -> str | None:
    """Arrow strings are UTF-8; a lone surrogate becomes its escape."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def show_counts(checks: list[Check], console: Console) -> None:
    """A small table: verdict, reason, count, share, meaning."""
    table = Table(title=f"{len(checks)} answers checked (checker version {CHECKER_VERSION})", title_justify="left")
    table.add_column("verdict")
    table.add_column("reason")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    table.add_column("meaning")
    for key, count in count_reasons(checks).items():
        verdict, _, reason = key.partition(":")
        table.add_row(verdict, reason, str(count), f"{100 * count / len(checks):.1f}%", REASONS[reason])
    console.print(table)
