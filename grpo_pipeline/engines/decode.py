"""The fast decode: continuous batching over slots.

Sequences wait in a queue, those of the longest prompts first, so that rows of like length are together.
Free slots are filled from it; each distinct prompt is computed once and copied to its samples' slots. Every
step runs one token of each active sequence; finished ones leave at once and the last slot takes their place.
The samples equal those of the plain loop, since a draw depends on seed and position alone.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_pipeline.engines.cache import CacheShape, SlotCache
from grpo_pipeline.engines.outputs import Outputs
from grpo_pipeline.engines.prefill import Prefill, Prompt, plan_prompts
from grpo_pipeline.engines.protocol import FinishReason, Request, SamplingParams
from grpo_pipeline.engines.sampling import sample_tokens, uniforms
from grpo_pipeline.engines.steps import DecodeStep, LayerStates
from grpo_pipeline.engines.stopping import StopRules
from grpo_pipeline.errors import UserError
from grpo_pipeline.memory import is_out_of_memory
from grpo_pipeline.models.threads import fitting_threads

_PREFILL_TOKENS = 16384
"""Prompt tokens, padding included, in one prefill."""
_REFILL_SHARE = 8
"""Slots are filled again when at least 1 in this many is free: a prefill for one row costs a whole step."""


_UNIFORM_BLOCK = 32
"""Response positions whose uniform numbers are made at once."""


@dataclass(eq=False, slots=True)
class _Sequence:
    """One sample to be drawn: its address, prompt, seed and the tokens it may have."""

    request: int
    sample: int
    seed: int
    prompt: Prompt
    limit: int
    finished: bool = False


@dataclass(frozen=True)
class FastDecoder:
    """The model and how one step of it is run.

    Attributes:
        model: The model, for prefilling.
        step: Runs one token of each sequence.
        shape: Sizes of the model's keys and values.
        max_model_len: Prompt and response tokens that fit together.
        max_batch: Sequences at most at once.
    """

    model: Any
    step: DecodeStep
    shape: CacheShape
    max_model_len: int
    max_batch: int

    def decode(self, requests: Sequence[Request], sampling: SamplingParams, rules: StopRules, outputs: Outputs) -> None:
        """Sample every request into `outputs`.

        When memory runs out, what has finished stays, the number of slots is halved, and the rest is drawn
        again: a sample depends on its seed, so it comes out the same.

        Raises:
            UserError: When memory does not even suffice for one sequence.
        """
        waiting = [
            _Sequence(index, sample, seed, prompt, min(sampling.max_tokens, self.max_model_len - len(prompt)))
            for index, request in enumerate(requests)
            for prompt in [tuple(request.prompt_token_ids)]
            for sample, seed in enumerate(request.seeds)
        ]
        self.step.refresh()
        slots = min(self.max_batch, len(waiting))
        while waiting:
            failure = self._attempt(waiting, slots, sampling, rules, outputs)
            waiting = [sequence for sequence in waiting if not sequence.finished]
            if failure is None:
                continue
            if slots == 1:
                longest = max(len(sequence.prompt) + sequence.limit for sequence in waiting)
                raise UserError(
                    f"out of memory with a single sequence (up to {longest} tokens): {failure}. "
                    "Lower sampling.max_tokens, shorten the prompts, or use a smaller model or a larger device."
                )
            slots = min(slots, len(waiting) + 1) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _attempt(
        self,
        waiting: Sequence[_Sequence],
        slots: int,
        sampling: SamplingParams,
        rules: StopRules,
        outputs: Outputs,
    ) -> str | None:
        """Decode until done (None) or until memory ran out (the reason); buffers are freed on return."""
        try:
            with fitting_threads([self.model], slots):
                batch = _Batch(self, waiting, sampling, rules, outputs, slots=slots)
                while batch.fill():
                    batch.advance()
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises it plainly
            if not is_out_of_memory(error):
                raise
            return str(error).splitlines()[0]
        return None


class _Batch:
    """Sequences in slots: row i of every tensor belongs to slot i, and slots 0..n-1 are active."""

    def __init__(
        self,
        decoder: FastDecoder,
        waiting: Sequence[_Sequence],
        sampling: SamplingParams,
        rules: StopRules,
        outputs: Outputs,
        *,
        slots: int,
    ) -> None:
        device = decoder.shape.device
        self._step, self._sampling, self._rules, self._outputs = decoder.step, sampling, rules, outputs
        self._slots = slots
        self._queue = _PromptQueue(decoder, waiting)
        self._active: list[_Sequence] = []
        most = max(sequence.limit for sequence in waiting)
        self._cache = SlotCache(decoder.shape, slots, self._queue.longest + min(most, 64))
        # One row a slot: next token to run, its position, response tokens so far, limit, seed.
        self._state = torch.zeros((5, slots), dtype=torch.int64, device=device)
        self._token_ids = torch.zeros((slots, most), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((slots, most), dtype=torch.float32, device=device)
        self._uniform = torch.empty((slots, 0), dtype=torch.float64, device=device)
        self._column = 0
        self._rows = torch.arange(slots, device=device)
        self._eos = torch.tensor(sorted(rules.eos_ids), dtype=torch.int64, device=device)
        self._may_complete = torch.tensor(rules.may_complete(), device=device) if rules.stop else None

    def fill(self) -> bool:
        """Put waiting sequences into free slots; False when nothing is left to do."""
        free = self._slots - len(self._active)
        if self._queue and (not self._active or free * _REFILL_SHARE >= self._slots):
            while self._queue and free:
                sequences, rows, layers = self._queue.take(free)
                self._admit(sequences, rows, layers)
                free -= len(sequences)
            self._uniform = self._uniform[:, :0]
        return bool(self._active)

    def advance(self) -> None:
        """Draw one token for every active sequence, and let the finished ones go."""
        n = len(self._active)
        tokens, positions, counts, limits, _ = self._state[:, :n]
        length = int(positions.max()) + 1
        self._cache.reserve(length)
        logits = self._step(tokens, positions, self._cache, length)
        new, logprobs = sample_tokens(logits, self._next_uniform(n), self._sampling)
        rows = self._rows[:n]
        self._token_ids[rows, counts] = new
        self._logprobs[rows, counts] = logprobs
        tokens.copy_(new)
        self._state[1:3, :n] += 1
        ended = (new[:, None] == self._eos).any(dim=-1) | (counts >= limits)
        if self._may_complete is not None:
            for row in (self._may_complete[new] & ~ended).nonzero().flatten().tolist():
                ended[row] = self._rules.hit_stop_string(self._response(row)[0])
        if finished := ended.nonzero().flatten().tolist():
            self._release(finished)

    def _next_uniform(self, n: int) -> torch.Tensor:
        if self._column >= self._uniform.shape[1]:
            block = torch.arange(_UNIFORM_BLOCK, device=self._rows.device)
            self._uniform = uniforms(self._state[4][:, None], self._state[2][:, None] + block)
            self._column = 0
        column = self._uniform[:n, self._column]
        self._column += 1
        return column

    def _admit(self, sequences: list[_Sequence], rows: list[int], layers: LayerStates) -> None:
        first, device = len(self._active), self._rows.device
        self._active += sequences
        slots = self._rows[first : len(self._active)]
        self._cache.reserve(max(len(sequence.prompt) for sequence in sequences))
        self._cache.load(slots, self._step.arrange(layers), torch.tensor(rows, device=device))
        # The last prompt token is the first to run: its logits are those of the first response token.
        state = [(s.prompt[-1], len(s.prompt) - 1, 0, s.limit, s.seed) for s in sequences]
        self._state[:, first : len(self._active)] = torch.tensor(state, dtype=torch.int64, device=device).T

    def _release(self, finished: list[int]) -> None:
        for row in finished:
            sequence = self._active[row]
            token_ids, logprobs = self._response(row)
            stopped = token_ids[-1] in self._rules.eos_ids or self._rules.hit_stop_string(token_ids)
            reason: FinishReason = "stop" if stopped else "length"
            self._outputs.add(sequence.request, sequence.sample, token_ids, logprobs, reason)
            sequence.finished = True
        n = len(self._active) - len(finished)
        gone = set(finished)
        holes = [row for row in finished if row < n]
        movers = [row for row in range(n, len(self._active)) if row not in gone]
        for hole, mover in zip(holes, movers, strict=True):
            self._active[hole] = self._active[mover]
        del self._active[n:]
        if holes:
            self._move(holes, movers)

    def _move(self, holes: list[int], movers: list[int]) -> None:
        targets = torch.tensor(holes, device=self._rows.device)
        sources = torch.tensor(movers, device=self._rows.device)
        self._cache.move(targets, sources, int(self._state[1, sources].max()))
        self._state[:, targets] = self._state[:, sources]
        for rows in (self._token_ids, self._logprobs, self._uniform):
            rows[targets] = rows[sources]

    def _response(self, row: int) -> tuple[list[int], list[float]]:
        count = int(self._state[2, row])
        return self._token_ids[row, :count].tolist(), self._logprobs[row, :count].tolist()


class _PromptQueue:
    """Sequences that wait, by prompt, and the prompts' keys and values computed ahead for some of them."""

    def __init__(self, decoder: FastDecoder, waiting: Sequence[_Sequence]) -> None:
        plan = plan_prompts([sequence.prompt for sequence in waiting])
        self._prefill = Prefill(decoder.model, plan)
        self._leaves = deque(plan.leaves)
        self._by_leaf: dict[Prompt, list[_Sequence]] = {leaf: [] for leaf in plan.leaves}
        for sequence in waiting:
            self._by_leaf[plan.leaf_of[sequence.prompt]].append(sequence)
        self._ready: deque[tuple[_Sequence, int]] = deque()
        self._layers: LayerStates = []
        self.longest = len(plan.leaves[0])

    def __bool__(self) -> bool:
        return bool(self._ready or self._leaves)

    def take(self, most: int) -> tuple[list[_Sequence], list[int], LayerStates]:
        """Up to `most` sequences, the row of each one's prompt in the layers, and the layers."""
        if not self._ready:
            self._compute(most)
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        return [sequence for sequence, _ in taken], [row for _, row in taken], self._layers

    def _compute(self, wanted: int) -> None:
        """Prefill the next leaves: enough for `wanted` sequences, within the token budget."""
        leaves: list[Prompt] = []
        while self._leaves and len(self._ready) < wanted:
            # The first is the longest, so the batch is padded to its length.
            if leaves and len(leaves[0]) * (len(leaves) + 1) > _PREFILL_TOKENS:
                break
            leaf = self._leaves.popleft()
            self._ready.extend((sequence, len(leaves)) for sequence in self._by_leaf[leaf])
            leaves.append(leaf)
        self._layers = []
        self._layers = self._prefill.compute(leaves)
