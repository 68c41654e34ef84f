"""A user's function by name: `module:function`, as settings that extend the pipeline take it (docs/extend.md)."""

import functools
import hashlib
import importlib
import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_pipeline.errors import UserError

_imported: dict[str, str] = {}
"""Module -> hash of its source when this process imported it."""


def load_entry_point(name: str, setting: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: `package.module:function`; the module is found as Python finds any other.
        setting: The setting that names it, for error messages.

    Returns:
        The function; whatever it raises comes as a `UserError` that says where in its file.

    Raises:
        UserError: Where the name has another form, the module or the function is not there, or the module fails
            while it is imported.
    """
    module_name, attribute = _parts(name, setting)
    source = source_hash(name, setting)
    if _imported.setdefault(module_name, source) != source:
        raise UserError(
            f"{setting}: {module_name!r} was edited after this process had imported it; start the process again, so "
            "that what is run is what the artifacts' fingerprints say"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(_not_found(module_name, setting, error)) from error
    except Exception as error:  # whatever a user's module does while it is imported
        raise UserError(f"{setting}: importing {module_name!r} failed: {_explain(error)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"{setting}: {module_name!r} has no function {attribute!r}")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{setting}: {name!r} failed: {_explain(error)}") from error

    return call


def source_hash(name: str, setting: str) -> str:
    """A hash of the file of the function's module: a part of the fingerprint of whatever the function made.

    What that module imports is not looked at.

    Args:
        name: `package.module:function`.
        setting: The setting that names it, for error messages.

    Raises:
        UserError: Where the name has another form, or there is no such module.
    """
    module_name, _ = _parts(name, setting)
    try:
        found = importlib.util.find_spec(module_name)
    except (ImportError, ValueError) as error:
        raise UserError(_not_found(module_name, setting, error)) from error
    except Exception as error:  # finding a module in a package imports the package
        raise UserError(f"{setting}: importing the package of {module_name!r} failed: {_explain(error)}") from error
    if found is None:
        raise UserError(_not_found(module_name, setting, f"No module named {module_name!r}"))
    if found.origin is None or not Path(found.origin).is_file():
        return "built in"
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _parts(name: str, setting: str) -> tuple[str, str]:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise UserError(f"{setting}: {name!r} is not of the form 'module:function'")
    return module_name, attribute


def _explain(error: Exception) -> str:
    """What was raised, and the line that raised it."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # says itself where
        return what
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what} ({last.filename}, line {last.lineno}, in {last.name})"


def _not_found(module_name: str, setting: str, error: object) -> str:
    return f"{setting}: cannot import {module_name!r} ({error}). Install it, or put its folder on PYTHONPATH."
