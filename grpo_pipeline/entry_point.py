"""A user's function by name: `module:function`, as settings that extend the pipeline take it (docs/extend.md)."""

import importlib
from collections.abc import Callable
from typing import Any

from grpo_pipeline.errors import UserError


def load_entry_point(name: str, setting: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: `package.module:function`; the module is found as Python finds any other.
        setting: The setting that names it, for error messages.

    Raises:
        UserError: Where the name has another form, or the module or the function is not there.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise UserError(f"{setting}: {name!r} is not of the form 'module:function'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{setting}: cannot import {module_name!r} ({error}). Install it, or put its folder on PYTHONPATH."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"{setting}: {module_name!r} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found
