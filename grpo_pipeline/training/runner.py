"""How rows go through a model: layout, device, number type and gradient checkpointing in one place."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.threads import fitting_threads
from grpo_pipeline.training import fused_llama
from grpo_pipeline.training.batching import Row, plan_packed, plan_padded
from grpo_pipeline.training.layouts import MicroBatch, check_packable, collate_packed, collate_padded, read_hidden
from grpo_pipeline.training.packed_attention import packed_attention
from grpo_pipeline.training.processes import ALONE, Processes

R = TypeVar("R")

MIN_BUDGET = 16
"""Tokens in a micro-batch below which memory is taken for too small at all."""


class Forward(nn.Module):
    """A model with the one way it is run while training: backbone, then whatever is read from its states.

    Reading happens inside the forward pass, since that is where a sharded model's head is whole.

    Args:
        model: A transformers model with a head.
        further: A module outside the model whose weights are read too (the language-model head of a pairwise model).
    """

    def __init__(self, model: Any, further: nn.Module | None = None) -> None:
        super().__init__()
        self.model = model
        self.further = further
        self.fused = False

    def forward(self, batch: MicroBatch, read: Callable[[Tensor], R]) -> R:
        """What `read` makes of the (N, hidden) states at the batch's read positions."""
        return read(read_hidden(self.model.base_model, batch, fused=self.fused))


class Runner:
    """Plans, collates and runs micro-batches of one or more models that read the same rows.

    Args:
        models: transformers models with a head, or their `Forward`s; their backbones are run.
        pad_id: Fills padding; any id does.
        config: Layout, token budget, gradient checkpointing.
        processes: Among whom micro-batches are divided.

    Raises:
        UserError: If packing does not fit one of the models.
    """

    def __init__(
        self, models: Sequence[Any], pad_id: int, config: TrainingConfig, processes: Processes = ALONE
    ) -> None:
        self._forwards: list[Any] = [model if isinstance(model, Forward) else Forward(model) for model in models]
        self.models = [forward.model for forward in self._forwards]
        self.processes = processes
        self.device: torch.device = self.models[0].device
        self.budget = config.tokens_per_microbatch
        self._pad_id = pad_id
        self._packing = config.packing
        self._checkpointing = config.gradient_checkpointing
        self._plan = plan_packed if config.packing else plan_padded
        self._collate = collate_packed if config.packing else collate_padded
        use_bfloat16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        self._autocast = torch.bfloat16 if use_bfloat16 else None
        for model in self.models:
            if config.packing:
                check_packable(model)
            if config.gradient_checkpointing:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # Sharded layers gather their weights in their own forward passes, which the fused form goes past.
        fused = config.packing and config.fused_layers and not processes.is_sharded
        for forward in self._forwards:
            forward.fused = fused and fused_llama.is_supported(forward.model.base_model)

    def plan(self, rows: Sequence[Row], together: int = 1) -> list[list[int]]:
        """Row indices of each micro-batch under the present token budget, enough of them for all processes."""
        return self._plan(rows, self._even_budget(rows), together)

    def collate(self, rows: Sequence[Row], chosen: Sequence[int]) -> MicroBatch:
        """The chosen rows as tensors on the device."""
        return self._collate(rows, chosen, self._pad_id, self.device)

    def read(self, batch: MicroBatch, read: Callable[[Tensor], R], model: int = 0) -> R:
        """What `read` makes of one of the models' (N, hidden) states at the batch's read positions."""
        result: R = self._forwards[model](batch, read)
        return result

    def hidden(self, batch: MicroBatch, model: int = 0) -> Tensor:
        """(N, hidden) states of one of the models at the batch's read positions."""
        return self.read(batch, lambda states: states, model)

    def _even_budget(self, rows: Sequence[Row]) -> int:
        """The token budget, lowered so that micro-batches of it come out even over the processes."""
        count = self.processes.count
        if count == 1 or not rows:
            return self.budget
        tokens = self._tokens(rows)
        rounds = -(-tokens // (self.budget * count))
        return min(self.budget, max(MIN_BUDGET, -(-tokens // (rounds * count))))

    def _tokens(self, rows: Sequence[Row]) -> int:
        """Tokens of the rows in this layout, but for padding: a packed prompt counts once."""
        prompts = {row.prompt_key: row.n_prompt for row in rows} if self._packing else {}
        return sum(len(row.tokens) - (row.n_prompt if self._packing else 0) for row in rows) + sum(prompts.values())

    @contextmanager
    def threads(self, rows: Sequence[Row]) -> Iterator[None]:
        """As many CPU threads as a micro-batch of these rows is worth."""
        with fitting_threads(self.models, min(self._tokens(rows), self._even_budget(rows))):
            yield

    @contextmanager
    def running(self, training: bool) -> Iterator[None]:
        """Around forward passes, and around the backward passes that belong to them.

        With gradient checkpointing models are in training mode, since it takes effect in that alone; dropout is 0 in
        all of them. The modes are put back after, since the rollout engine shares the policy.
        """
        switched = self.models if self._checkpointing else []
        before = [model.training for model in switched]
        with ExitStack() as stack:
            if self._packing:
                for model in self.models:
                    stack.enter_context(packed_attention(model))
            if self._autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self._autocast))
            try:
                for model in switched:
                    model.train(training)
                yield
            finally:
                for model, mode in zip(switched, before, strict=True):
                    model.train(mode)
                if self.processes.is_sharded and not training:
                    # No backward pass has let go of what the forward gathered; the next one must gather anew.
                    for forward in self._forwards:
                        forward.reshard()

    def halve_budget(self, error: BaseException) -> None:
        """After out-of-memory: half the token budget from now on.

        Raises:
            UserError: If there is nothing left to halve.
        """
        if self.budget <= MIN_BUDGET:
            raise UserError(
                f"out of memory with {self.budget} tokens in a micro-batch; use gradient checkpointing, LoRA, shorter "
                "responses or a smaller model"
            ) from error
        self.budget //= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout of a model to 0: log-probabilities must not depend on chance."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - mypy takes attributes of modules for tensors
