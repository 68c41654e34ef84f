"""What is wrong with settings, in words: the key, what is allowed, and what was given."""

from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from grpo_pipeline.config.base import mask_credentials
from grpo_pipeline.settings_text import toml_value


def explain_errors(error: ValidationError, model: type[BaseModel], lead: str = "") -> list[str]:
    """A line for each problem.

    Args:
        error: What the model raised.
        model: The model.
        lead: Put before each key, such as ``policy.`` where the model is a section.
    """
    lines = []
    for item in error.errors(include_url=False):
        key = f"{lead}{'.'.join(str(part) for part in item['loc'])}".rstrip(".")
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key; allowed here: {', '.join(_allowed_keys(model, item['loc'][:-1]))}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = "" if isinstance(item["input"], dict | BaseModel) else f" (got {_as_written(item['input'])})"
            # What the whole of a run demands names its keys itself.
            lines.append(f"{key}: {message}{mask_credentials(given)}" if key else message)
    return lines


def _as_written(value: Any) -> str:
    return repr(value) if isinstance(value, str) else toml_value(value)


def _allowed_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    schema = TypeAdapter(model).json_schema()
    node: dict[str, Any] = schema
    for part in path:
        node = _resolve(node.get("properties", {}).get(str(part), {}), schema)
    return sorted(node.get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", []), *node.get("allOf", [])):
        if "$ref" in option:
            name = option["$ref"].rsplit("/", 1)[-1]
            found: dict[str, Any] = schema["$defs"][name]
            return found
    return node
