"""Reading a configuration from TOML with overrides, and refusing a bad one in words."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_pipeline.config.explain import explain_errors
from grpo_pipeline.config.run import RunConfig
from grpo_pipeline.errors import UserError


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a TOML file and apply ``a.b=value`` overrides.

    Args:
        path: The file; None starts from the defaults.
        overrides: Each ``dotted.key=value``; the value is read as TOML where it is valid TOML, else as text.

    Raises:
        UserError: For a missing or broken file, an unknown key, a wrong type or an impossible value; the
            message names the key and what is allowed.
    """
    data: dict[str, Any] = {}
    where = "the overrides"
    if path is not None:
        where = str(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such configuration file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not valid TOML: {error}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    for override in overrides:
        _apply_override(data, override)
    return parse_config(data, where)


def parse_config(data: Mapping[str, Any], where: str) -> RunConfig:
    """Validate a nested mapping; raises UserError listing every problem by key."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problems = "".join(f"\n  {line}" for line in explain_errors(error, RunConfig))
        raise UserError(f"{where}: {error.error_count()} problem(s) in the configuration:{problems}") from None


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: expected KEY=VALUE with a dotted key, e.g. policy.optimizer.lr=1e-5")
    *parents, last = key.strip().split(".")
    node = data
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {override}: {parent} is a value, not a section")
        node = child
    node[last] = _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return {"null": None, "none": None}.get(text.lower(), text)
