import shutil

import pytest

from tests.small_run import make_run


@pytest.fixture(scope="session")
def _built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "run"
    make_run(folder)
    return folder


@pytest.fixture
def run_folder(_built, tmp_path):
    """A copy of its own for each test."""
    return shutil.copytree(_built, tmp_path / "run")


@pytest.fixture
def artifact(run_folder):
    def find(stage, round=0):
        return str(next((run_folder / "artifacts").glob(f"{stage}-r{round}-*")))

    return find
