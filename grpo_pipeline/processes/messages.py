"""What parent and child say to each other: JSON lines over a socket, so that nothing is ever unpickled.

Arguments and results are written and read by their type hints, which pydantic knows how to check.
"""

import importlib
import inspect
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter

_CHUNK = 1 << 16
_IN_TRANSIT = {"in_transit": True}
"""Serialisation context: a reference then keeps what is not stored (`ArtifactRef.cached`)."""


@dataclass(frozen=True)
class Request:
    """A call, and the surroundings that it would have had in the parent.

    Attributes:
        function: `module:name` of a function whose arguments and result have type hints.
        arguments: Argument -> JSON text.
        environment: The parent's environment variables.
        folder: The parent's working directory.
        path: The parent's module search path.
    """

    function: str
    arguments: dict[str, str]
    environment: dict[str, str]
    folder: str
    path: list[str]


def name_of(function: Callable[..., Any]) -> str:
    """`module:name` of a module's function or class.

    Raises:
        ValueError: A child would not find it there under its name: a lambda, a method, a function inside another, or
            one of a script.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ == "__main__" or find(name) is not function:
        raise ValueError(f"{name} is not the function itself, so a child process could not find it")
    return name


def find(name: str) -> Callable[..., Any]:
    """The function, or class, of a name."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute, None)  # type: ignore[assignment]
    return function


def encode_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Argument -> JSON text."""
    hints = get_type_hints(function)
    bound = inspect.signature(function).bind(*args, **kwargs)
    return {name: encode(hints[name], value) for name, value in bound.arguments.items()}


def decode_arguments(function: Callable[..., Any], arguments: dict[str, str]) -> dict[str, Any]:
    """The inverse of `encode_arguments`, checked."""
    hints = get_type_hints(function)
    return {name: decode(hints[name], text) for name, text in arguments.items()}


def encode_result(function: Callable[..., Any], value: Any) -> str:
    """A result as JSON text."""
    return encode(get_type_hints(function)["return"], value)


def decode_result(function: Callable[..., Any], text: str) -> Any:
    """The inverse of `encode_result`, checked."""
    return decode(get_type_hints(function)["return"], text)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def messages(connection: socket.socket, each_second: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
    """Messages until the other end closes.

    Args:
        connection: Where they come from.
        each_second: Called about every second, whether any come or not.
    """
    buffer = b""
    due = time.monotonic() + 1.0
    while True:
        if (left := due - time.monotonic()) <= 0:
            each_second()
            due = time.monotonic() + 1.0
            continue
        connection.settimeout(left)
        try:
            data = connection.recv(_CHUNK)
        except TimeoutError:
            continue
        except ConnectionResetError:  # the other end was killed before it had read everything
            return
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


def encode(hint: Any, value: Any) -> str:
    """A value of a type as JSON text."""
    return TypeAdapter(hint).dump_json(value, context=_IN_TRANSIT).decode()


def decode(hint: Any, text: str) -> Any:
    """The inverse of `encode`, checked."""
    return TypeAdapter(hint).validate_json(text)
