"""Prefect flows: the stages put together. Each file is one flow and runs as ``python -m flows.NAME``."""

import tasks  # noqa: F401 - sets Prefect's defaults before prefect is imported
