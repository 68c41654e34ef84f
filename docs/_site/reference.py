"""The reference pages, made from the code, so that they cannot differ from it.

python docs/_site/reference.py   prints all of them
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import click
import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grpo_pipeline.config import RunConfig
from grpo_pipeline.schemas import SCHEMA_VERSION, TABLES


def config_page() -> str:
    """Every key of the configuration: type, default, meaning."""
    parts = [
        "# Configuration",
        "A configuration is a TOML file; every key can be set with `--set SECTION.KEY=VALUE` too. Keys that are left "
        "out have the default below. An unknown key, a wrong type or an impossible value is refused before anything "
        "starts. Made from `grpo_pipeline.config`.",
    ]
    for path, section, values in _sections(RunConfig, RunConfig()):
        title = f"`{path}`" if path else "The run"
        parts.append(f"## {title}\n\n{(section.__doc__ or '').strip().splitlines()[0]}")
        rows = [
            (f"`{name}`", _kind(field.annotation, field.metadata), _default(name, field, values), field.description)
            for name, field in section.model_fields.items()
            if field.description  # sections have none: they follow by themselves
        ]
        if rows:
            parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def tables_page() -> str:
    """Every table and column."""
    parts = [
        "# Tables",
        f"Every table is Parquet with exactly these columns (schema version {SCHEMA_VERSION}); "
        '`grpo_pipeline.tables.scan("rollouts", run)` reads one. A type with `?` may be null. Made from '
        "`grpo_pipeline.schemas`.",
    ]
    for table in TABLES.values():
        rows = [
            (f"`{field.name}`", f"{field.type}{'?' if field.nullable else ''}", table.describe()[field.name])
            for field in table.schema
        ]
        key = ", ".join(f"`{column}`" for column in table.key)
        further = "".join(
            f" Further columns{f' that begin with `{prefix}`' if prefix else ''} may follow, of type {kind}."
            for prefix, kind in table.open_columns.items()
        )
        parts.append(f"## `{table.name}`\n\n{table.description} Key: {key}.{further}")
        parts.append(_table(("column", "type", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every command of the console program with its arguments and options."""
    from flows.cli import app

    program = typer.main.get_command(app)
    assert isinstance(program, click.Group) or hasattr(program, "commands")
    parts = ["# Commands", "`grpo-pipeline COMMAND --help` says the same. Made from the program itself."]
    for name, command in program.commands.items():
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            names = ", ".join(f"`{one}`" for one in parameter.opts)
            if parameter.param_type_name == "argument":
                names = f"`{(parameter.metavar or parameter.name or '').upper()}`"
            default = "" if parameter.default is None or callable(parameter.default) else f"`{parameter.default}`"
            rows.append((names, default, getattr(parameter, "help", None) or ""))
        parts.append(f"## `{name}`\n\n{(command.help or '').strip()}")
        if rows:
            parts.append(_table(("argument", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {"config": config_page, "tables": tables_page, "commands": commands_page}


def _sections(
    section: type[BaseModel], values: BaseModel | None, path: str = ""
) -> Iterator[tuple[str, type[BaseModel], BaseModel | None]]:
    """Each section's path, class, and its values in a run of defaults; None for one that is null there."""
    yield path, section, values
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        if inner is None:
            continue
        value = getattr(values, name, None)
        below = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            below += ".NAME"  # a section for each name that the user gives
        elif isinstance(value, tuple):
            below += "[]"
        yield from _sections(inner, value if isinstance(value, BaseModel) else None, below)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _kind(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        return _kind(annotation.__origin__, list(annotation.__metadata__))
    if get_origin(annotation) in (Union, type(int | None)):
        options = ["null" if option is type(None) else _kind(option, []) for option in get_args(annotation)]
        return " or ".join(options) + _bounds(metadata)
    if get_origin(annotation) is not None:
        inner = ", ".join(_kind(o, []) for o in get_args(annotation) if o is not ...)
        return f"{get_origin(annotation).__name__} of {inner}{_bounds(metadata)}"
    return f"{getattr(annotation, '__name__', str(annotation))}{_bounds(metadata)}"


def _bounds(metadata: list[Any]) -> str:
    found = []
    for one in metadata:
        for bound in (one, *getattr(one, "metadata", ())):
            for kind, sign, name in ((Gt, ">", "gt"), (Ge, "≥", "ge"), (Lt, "<", "lt"), (Le, "≤", "le")):
                if isinstance(bound, kind):
                    found.append(f"{sign} {getattr(bound, name)}")
    return f" {', '.join(found)}" if found else ""


def _default(name: str, field: FieldInfo, values: BaseModel | None) -> str:
    value = field.get_default(call_default_factory=True) if values is None else getattr(values, name)
    if value is PydanticUndefined:
        return "must be given"
    if isinstance(value, BaseModel):
        return "its own section"
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    return f"`{value!r}`".replace("'", '"')


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])


if __name__ == "__main__":
    sys.stdout.write("\n".join(make() for make in PAGES.values()))
