import pytest

from tests.training.toy_policies import make_model, make_rows


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def rows():
    return make_rows()
