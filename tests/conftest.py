"""The order of tests: those that wait for processes first, so that no worker is left alone with them at the end."""

from pathlib import Path

_LONG = ("flows", "workers", "processes", "operations", "security", "docs", "report", "training")
_ROOT = Path(__file__).parent


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _place(item.path))


def _place(path):
    folder = path.relative_to(_ROOT).parts[0]
    return _LONG.index(folder) if folder in _LONG else len(_LONG)
