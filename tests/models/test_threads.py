"""CPU threads by the size of a forward pass."""

import pytest
import torch
from torch import nn

from grpo_pipeline.models.threads import SMALL, fitting_threads


class Sized(nn.Module):
    """A model of so many parameters, on a device that need not be here."""

    def __init__(self, parameters, device="cpu"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parameters, device="meta"))
        self.device = torch.device(device)


@pytest.fixture(autouse=True)
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_a_small_pass_has_one_thread_and_a_large_one_all():
    model = Sized(SMALL // 1024)
    with fitting_threads([model], 1023):
        assert torch.get_num_threads() == 1
    with fitting_threads([model], 1024):
        assert torch.get_num_threads() == 4
    assert torch.get_num_threads() == 4


def test_the_largest_model_decides():
    with fitting_threads([Sized(10), Sized(SMALL)], 1):
        assert torch.get_num_threads() == 4


def test_a_pass_within_another_has_its_own_number():
    model = Sized(SMALL // 1024)
    with fitting_threads([model], 1):
        with fitting_threads([model], 4096):
            assert torch.get_num_threads() == 4
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4


def test_threads_come_back_after_an_error():
    with pytest.raises(ZeroDivisionError), fitting_threads([Sized(1)], 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 4


def test_what_was_set_is_never_exceeded():
    torch.set_num_threads(1)
    with fitting_threads([Sized(SMALL)], 4096):
        assert torch.get_num_threads() == 1


def test_other_devices_keep_their_threads():
    with fitting_threads([Sized(1, "cuda")], 1):
        assert torch.get_num_threads() == 4
