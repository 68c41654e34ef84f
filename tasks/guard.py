"""Publishing is for people: where the server does not answer, hours of work go on without it."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.logging import get_logger

_log = get_logger("grpo_pipeline.publish")


@contextmanager
def publishing(what: str) -> Iterator[None]:
    """Log an error of the block as a warning, whatever it is, and go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (the server's answers, its client's errors, a plot: none may end a run)
        _log.warning("%s is not shown in Prefect's UI: %s: %s", what, type(error).__name__, error)
