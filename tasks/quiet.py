"""Keeps a user's mistake one message in the log: Prefect prints the traceback of every failure."""

import logging

from grpo_pipeline.errors import UserError


class _UserErrorFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], UserError):
            record.msg, record.args, record.exc_info = str(record.exc_info[1]), (), None
        return True


def quiet_user_errors() -> None:
    """Log a UserError in a flow or task as its message alone; safe to call more than once."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _UserErrorFilter) for one in logger.filters):
            logger.addFilter(_UserErrorFilter())
