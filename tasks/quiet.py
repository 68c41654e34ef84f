"""Keeps a user's mistake, or a process's death, one message in the log, and Ctrl-C one line.

Prefect tells of each as of a failure.
"""

import logging

from grpo_pipeline.errors import ProcessDiedError, UserError
from grpo_pipeline.interrupts import is_interrupted


class _PersonsFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if is_interrupted():
            return False
        if record.exc_info and isinstance(record.exc_info[1], UserError | ProcessDiedError):
            record.msg, record.args, record.exc_info = str(record.exc_info[1]), (), None
        return True


def quiet_user_errors() -> None:
    """Log such an error in a flow or task as its message alone, and nothing after Ctrl-C; safe to call repeatedly."""
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _PersonsFilter) for one in logger.filters):
            logger.addFilter(_PersonsFilter())
