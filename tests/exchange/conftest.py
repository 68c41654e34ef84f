import pytest

from tests.small_run import make_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "run"
    return make_run(folder)
