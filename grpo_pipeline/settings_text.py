"""Settings as a person writes and reads them: TOML, with ``null`` for a setting that is not set."""

import json
from collections.abc import Mapping
from typing import Any


def toml_lines(settings: Mapping[str, Any]) -> list[str]:
    """The settings as lines of TOML: values first, then a ``[section]`` for each mapping, nested ones by dotted name.

    Args:
        settings: JSON values. TOML has no null; it is written as `--set KEY=null` takes it.
    """
    return _lines(settings, ())


def toml_value(value: Any) -> str:
    """One value as TOML has it; mappings as inline tables.

    >>> toml_value([True, None, 1e-05, {"path": "a"}])
    '[true, null, 1e-05, {path = "a"}]'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, int | float):
        return repr(value)
    return _quoted(str(value))


def flatten(settings: Mapping[str, Any], lead: str = "") -> dict[str, Any]:
    """Dotted key -> value, as `--set` names them."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{lead}{name}.") if isinstance(value, dict) and value else {f"{lead}{name}": value}
    return flat


def _lines(settings: Mapping[str, Any], section: tuple[str, ...]) -> list[str]:
    sections = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {toml_value(value)}" for name, value in settings.items() if name not in sections]
    if section and (lines or not sections):
        lines.insert(0, f"[{'.'.join(map(_key, section))}]")
    for name, value in sections.items():
        lines += [*([""] if lines else []), *_lines(value, (*section, name))]
    return lines


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes are those of TOML's basic strings, which escape one control character more.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
