from tests.processes.conftest import living, waiting

__all__ = ["living", "waiting"]
