"""Tables by name: check a frame against its schema, read a run's rows, join on the key columns.

`scan("rollouts", "runs/quickstart")` is the way to look at a run's data: a lazy polars frame over every
finished artifact of that run. `conform` stands before every write, so that what is on disk has exactly the
columns and types of `schemas.TABLES`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import TABLES, TableSchema

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

ID_COLUMNS = ("problem_id", "rollout_id", "step_index", "completion_id")
"""The columns that name a row across tables, from general to particular."""


def table_schema(table: str) -> TableSchema:
    """The schema of a table; raises UserError listing the tables where there is none of that name."""
    if table not in TABLES:
        raise UserError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
    return TABLES[table]


def empty(table: str) -> pl.DataFrame:
    """No rows, with the table's columns and types."""
    schema = table_schema(table).schema
    return pl.DataFrame(schema={field.name: _polars_type(field.type) for field in schema})


def from_rows(rows: Iterable[Mapping[str, Any]], table: str) -> pl.DataFrame:
    """A frame with the table's types from rows of Python values; floats are rounded to the column's type.

    Columns that a row lacks are null; open columns (`TableSchema.open_columns`) are found in the rows.

    Raises:
        UserError: A row holds a column that the table does not know.
        TypeError, OverflowError: A value does not fit its column's type.
    """
    spec = table_schema(table)
    rows = list(rows)
    extra = {name: None for row in rows for name in row if name not in spec.schema.names}
    schema = dict(empty(table).schema)
    for name in extra:
        kind = _open_type(spec, name)
        if kind is None:
            raise UserError(f"rows of {table}: unknown column {name!r}; the table has {', '.join(spec.schema.names)}")
        schema[name] = _polars_type(kind)
    return pl.DataFrame([dict(row) for row in rows], schema=schema, orient="row")


_POLARS_TYPES = {
    pa.string(): pl.String(),
    pa.int32(): pl.Int32(),
    pa.int64(): pl.Int64(),
    pa.float32(): pl.Float32(),
    pa.float64(): pl.Float64(),
    pa.bool_(): pl.Boolean(),
}
"""The types that tables use. Asking polars (`from_arrow`) would import pandas, which takes a second."""


def _polars_type(kind: pa.DataType) -> pl.DataType:
    """The polars type of a pyarrow type."""
    return pl.List(_polars_type(kind.value_type)) if pa.types.is_list(kind) else _POLARS_TYPES[kind]


def conform(frame: pl.DataFrame | pa.Table, table: str, where: str) -> pa.Table:
    """The frame as its table's schema has it: columns in order, exact types, nulls only where allowed.

    A type is changed only within its kind (integer, float, text, list of those; integer to float) and only
    where every value stays what it was, so 3 (int64) becomes int32 and 0.1 (float64) is refused as float32.

    Args:
        frame: All columns of the table, in any order, and open columns.
        table: The table's name.
        where: What the frame is (a file, a stage); stands first in an error.

    Raises:
        UserError: Naming where, table, column, what was expected and what was found.
    """
    spec = table_schema(table)
    data = frame if isinstance(frame, pa.Table) else frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    found = set(data.column_names)
    if len(found) != data.num_columns:
        raise UserError(f"{where}: table {table} has a column name twice: {', '.join(data.column_names)}")
    missing = [name for name in spec.schema.names if name not in found]
    if missing:
        raise UserError(
            f"{where}: table {table}: expected column {', '.join(missing)}, "
            f"found only {', '.join(data.column_names) or 'no column'}"
        )
    fields = list(spec.schema)
    for name in data.column_names:
        if name in spec.schema.names:
            continue
        kind = _open_type(spec, name)
        if kind is None:
            raise UserError(
                f"{where}: table {table}: unknown column {name!r} ({data.schema.field(name).type}); "
                f"expected only {', '.join(spec.schema.names)}"
            )
        fields.append(pa.field(name, kind))
    columns = [
        _conform_column(data[field.name], field, f"{where}: table {table}, column {field.name}") for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _open_type(spec: TableSchema, name: str) -> pa.DataType | None:
    for prefix, kind in spec.open_columns.items():
        if name.startswith(prefix):
            return kind
    return None


def _conform_column(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not _same_kind(column.type, field.type):
        raise UserError(f"{where}: expected {field.type}, found {column.type}")
    if not field.nullable and column.null_count:
        row = pc.index(pc.is_null(column), value=True).as_py()
        raise UserError(f"{where}: expected no null, found {column.null_count}, the first in row {row}")
    if pa.types.is_list(field.type) and not field.type.value_field.nullable:
        # Only the elements of rows that are there: a null row may hide anything.
        nulls = pc.list_flatten(column).null_count
        if nulls:
            raise UserError(f"{where}: expected no null element, found {nulls}")
    try:
        cast = column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise UserError(f"{where}: expected {field.type}, found {column.type} that does not fit: {error}") from None
    before, after = _leaves(column), _leaves(cast)
    if pa.types.is_floating(before.type) and before.type != after.type:
        changed = pc.and_(pc.not_equal(after.cast(before.type), before), pc.invert(pc.is_nan(before)))
        if pc.any(changed).as_py():
            value = before.filter(changed)[0].as_py()
            raise UserError(
                f"{where}: expected {field.type}, found {column.type} with values that it cannot hold exactly, "
                f"such as {value!r}; round them where they are made (polars: cast, or tables.from_rows)"
            )
    return cast


def _leaves(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.list_flatten(column) if _is_list(column.type) else column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _same_kind(found: pa.DataType, expected: pa.DataType) -> bool:
    is_a = pa.types
    if is_a.is_null(found):
        return True
    if is_a.is_list(expected):
        return _is_list(found) and _same_kind(found.value_type, expected.value_type)
    if is_a.is_string(expected):
        return bool(is_a.is_string(found) or is_a.is_large_string(found) or is_a.is_string_view(found))
    if is_a.is_floating(expected):
        return bool(is_a.is_floating(found) or is_a.is_integer(found))
    if is_a.is_integer(expected):
        return bool(is_a.is_integer(found))
    return bool(found == expected)


def scan(table: str, run: str | Path, *, stage: str | None = None, round: int | None = None) -> pl.LazyFrame:
    """Every row of a table in the finished artifacts of a run, lazily.

    A run may hold several artifacts with the same table (rollouts that were labelled, trained on, evaluated;
    or the same stage under two configurations): choose with `stage` and `round`, or open one artifact by its
    reference (`Store.artifacts`).

    Labels that a person derived afterwards from a run's own (`grpo-pipeline relabel`) are other opinions on
    the same steps. They are read only where they are asked for, with `stage="relabel"`, so that no step counts
    twice.

    Args:
        table: A name in `schemas.TABLES`.
        run: Folder or fsspec URL of the run.
        stage: Only artifacts of this stage; by default all but those of `manifest.DERIVED_STAGES`.
        round: Only artifacts of this round.

    Returns:
        The rows, artifact by artifact in order of round, stage and fingerprint; none, with the table's
        columns and types, where nothing is there yet.

    Raises:
        UserError: There is no such run or table, or a shard is damaged.
    """
    from grpo_pipeline.store import Store  # here, because the store writes through `conform`
    from grpo_pipeline.store.manifest import DERIVED_STAGES

    table_schema(table)
    refs = Store(run).artifacts(stage=stage, round=round)
    if stage is None:
        refs = [ref for ref in refs if ref.stage not in DERIVED_STAGES]
    frames = [ref.scan(table) for ref in refs if table in ref.tables]
    if not frames:
        return empty(table).lazy()
    # Only open columns differ between artifacts; `diagonal` fills those with nulls.
    return pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]


def read(table: str, run: str | Path, *, stage: str | None = None, round: int | None = None) -> pl.DataFrame:
    """`scan`, collected."""
    return scan(table, run, stage=stage, round=round).collect()


def join_keys(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    """The columns on which two tables with these columns are joined.

    These are the id columns that both have. Steps and completions meet on the prefix instead: rollouts that
    share a prefix share its completions, and a completion names only the first of those rollouts.

    Raises:
        UserError: They share no id column.
    """
    shared = set(left) & set(right)
    if {"problem_id", "prefix_hash"} <= shared:
        return ("problem_id", "prefix_hash")
    keys = tuple(column for column in ID_COLUMNS if column in shared)
    if not keys:
        raise UserError(f"nothing to join on: the tables share none of {', '.join(ID_COLUMNS)}")
    return keys


def join(left: Frame, right: Frame, how: str = "inner", suffix: str = "_right") -> Frame:
    """Join two tables on the key columns that both have (`join_keys`), both lazy or both not.

    Args:
        left: Rows of one table; its columns keep their names.
        right: Rows of another.
        how: As polars: inner, left, full, semi, anti.
        suffix: Added to the right's other columns where the left has one of that name.
    """
    names = [frame.lazy().collect_schema().names() for frame in (left, right)]
    joined: Frame = left.join(right, on=list(join_keys(*names)), how=how, suffix=suffix)  # type: ignore[arg-type]
    return joined
