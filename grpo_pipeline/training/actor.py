"""The policy under training: model, adapters, reference, and log-probabilities of responses."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_pipeline.config import ModelConfig, TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.heads import output_head
from grpo_pipeline.models.loading import load_policy, load_tokenizer, save_model
from grpo_pipeline.training.adapters import add_adapters, merge_adapters, merged_weights, without_adapters
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.logprobs import token_logprobs
from grpo_pipeline.training.loop import read_all
from grpo_pipeline.training.optimizer import load_weights, trainable_parameters
from grpo_pipeline.training.processes import ALONE, Processes, whole_tensors
from grpo_pipeline.training.runner import Forward, Runner, disable_dropout
from grpo_pipeline.training.token_rows import TokenRows


class Actor:
    """A policy and, where it is asked for, its reference: the same folder's weights, kept as they were.

    Attributes:
        model: The causal language model; the rollout engine shares it, unless its weights are sharded.
        tokenizer: Its tokenizer.
        source_id: Content id of the folder, which is also the reference's.
        parameters: Name -> trainable parameter.

    Raises:
        UserError: If the folder or a setting does not fit.
    """

    def __init__(
        self,
        folder: Path,
        place: ModelConfig,
        training: TrainingConfig,
        processes: Processes = ALONE,
        seed: int = 0,
    ) -> None:
        self._folder, self._place, self._training, self._processes = folder, place, training, processes
        self.model = self._load()
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(folder, trust_remote_code=place.trust_remote_code)
        self.source_id = content_id(folder)
        self._head = output_head(self.model)
        self._wrapper: Any = add_adapters(self.model, training.lora, seed=seed) if training.lora else None
        self._forward = Forward(self.model)
        processes.shard(self._forward)
        self.parameters = trainable_parameters(self.model)
        self._reference: Any = None

    def runner(self, further: Sequence[Any] = ()) -> Runner:
        """Runs the policy, and further models on the same rows."""
        return Runner([self._forward, *further], self._pad_id, self._training, self._processes)

    def logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """(N,) log-probabilities of the targets, with gradient, and (N,) entropy."""
        return token_logprobs(hidden, self._head, targets, temperature)

    def read_logprobs(self, runner: Runner, data: TokenRows, temperature: float) -> Tensor:
        """(N,) log-probabilities under the present weights, without gradient."""
        return _read(runner, self._head, data, temperature)

    def reference_logprobs(self, runner: Runner, data: TokenRows, temperature: float) -> Tensor:
        """(N,) log-probabilities under the reference. It is loaded at the first call, or never."""
        if self._wrapper is not None:
            with without_adapters(self._wrapper):
                return _read(runner, self._head, data, temperature)
        if self._reference is None:
            self._reference = Forward(self._load().requires_grad_(requires_grad=False))
            self._processes.shard(self._reference)
        reference = Runner([self._reference], self._pad_id, self._training, self._processes)
        reference.budget = runner.budget
        return _read(reference, output_head(self._reference.model), data, temperature)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole tensor of every weight, adapters merged, named as in the model's file: for an engine."""
        yield from merged_weights(self.model)

    def save(self, folder: Path, parents: Sequence[str], settings: dict[str, Any]) -> str:
        """Write the policy, adapters merged; returns its content id. Training ends here.

        All processes call it; the main one writes.
        """
        if self._processes.is_sharded:
            tensors = whole_tensors(self.parameters)
            return self._processes.from_main(lambda: self._rebuilt(tensors).save(folder, parents, settings))
        return self._processes.from_main(lambda: self._write(folder, parents, settings))

    def _rebuilt(self, tensors: dict[str, Tensor]) -> "Actor":
        """The same policy in one piece, on the CPU."""
        actor = Actor(self._folder, self._place.model_copy(update={"device": "cpu"}), self._training)
        load_weights(actor.parameters, tensors)
        return actor

    def _write(self, folder: Path, parents: Sequence[str], settings: dict[str, Any]) -> str:
        if self._wrapper is not None:
            self.model = merge_adapters(self._wrapper)
        return save_model(self.model, self.tokenizer, folder, kind="policy", parents=parents, settings=settings)

    @property
    def _pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id or 0)

    def _load(self) -> Any:
        if self._place.dtype == "float16":
            raise UserError("model.dtype = 'float16' cannot be trained in; use float32, bfloat16 or auto")
        # float32 weights unless told otherwise: updates of 1e-6 vanish in bfloat16; autocast gives its speed.
        dtype = "float32" if self._place.dtype == "auto" else self._place.dtype
        device = self._processes.load_device(self._place.device)
        model = load_policy(self._folder, dtype=dtype, device=device, trust_remote_code=self._place.trust_remote_code)
        disable_dropout(model)
        return model


def _read(runner: Runner, head: Any, data: TokenRows, temperature: float) -> Tensor:
    def read(batch: MicroBatch) -> Tensor:
        targets, _ = data.take(batch.rows)
        return runner.read(
            batch, lambda states: token_logprobs(states, head, targets, temperature, with_entropy=False)[0]
        )

    return read_all(runner, data.rows, read)
