"""CPU threads by the size of a forward pass."""

from pathlib import Path

import pytest
import torch
from torch import nn

from grpo_pipeline.config import EngineConfig, ModelConfig, TrainingConfig
from grpo_pipeline.config.training import OptimizerConfig
from grpo_pipeline.engines import decode, prefill
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import Request, SamplingParams
from grpo_pipeline.methods.base import MethodLoss
from grpo_pipeline.models.threads import SMALL, fitting_threads
from grpo_pipeline.training.loop import Part, optimizer_step, read_all
from grpo_pipeline.training.optimizer import Optimizer, trainable_parameters
from grpo_pipeline.training.runner import Runner
from tests.training.toy_policies import make_model, make_rows


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


@pytest.fixture
def counted():
    """Threads that torch had in every call of a function put in place of another one."""
    seen = []

    def counting(function):
        def call(*args, **kwargs):
            seen.append(torch.get_num_threads())
            return function(*args, **kwargs)

        return call

    return seen, counting


def test_a_small_model_decodes_and_prefills_on_one_thread(monkeypatch, counted):
    seen, counting = counted
    monkeypatch.setattr(decode, "sample_tokens", counting(decode.sample_tokens))
    monkeypatch.setattr(prefill, "forward_logits", counting(prefill.forward_logits))
    model = Path(__file__).parents[2] / "data" / "tiny"
    requests = [Request(prompt_token_ids=[5, 6, 7], seeds=[1, 2])]
    with open_engine(model, ModelConfig(device="cpu"), EngineConfig(), model_id="tiny") as engine:
        engine.generate(requests, SamplingParams(max_tokens=3))
    assert set(seen) == {1}
    assert len(seen) >= 2
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("small", "threads"), [(SMALL, 1), (1, 4)])
def test_training_and_reading_have_the_threads_of_their_size(monkeypatch, small, threads):
    monkeypatch.setattr("grpo_pipeline.models.threads.SMALL", small)
    model, rows, seen = make_model(dtype=torch.float32), make_rows(), []
    runner = Runner([model], 0, TrainingConfig())
    optimizer = Optimizer(trainable_parameters(model), OptimizerConfig(lr=1e-3), total=1)

    def loss_of(batch):
        seen.append(torch.get_num_threads())
        return MethodLoss(runner.hidden(batch).square().mean(), {})

    def read(batch):
        seen.append(torch.get_num_threads())
        return runner.hidden(batch)

    optimizer_step({"": optimizer}, runner, [Part(rows, loss_of)])
    read_all(runner, rows, read)
    assert seen == [threads, threads]
    assert torch.get_num_threads() == 4
