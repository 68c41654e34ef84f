"""Two forms of a micro-batch behind one interface: plain padded, and padding-free with shared prompts.

Either form is a `MicroBatch`, and `read_hidden` gives the same (N, hidden) states for it, so that losses never
know which one they run on. The padded form is the reference to read first. The packed form runs token-wise
work (norms, projections, MLP) on P + sum(R_i) tokens for a prompt of P tokens with responses of R_i tokens,
where the padded form has G * max(P + R_i).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from grpo_pipeline.errors import UserError
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.fused_llama import read_hidden_fused
from grpo_pipeline.training.packed_attention import PACKED_ATTENTION, PackedLayout, build_layout, packed_attention

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together. N read positions, R rows.

    Attributes:
        rows: Indices of its rows in the optimizer step, in the order of the read positions.
        input_ids: (B, L) token ids.
        position_ids: (B, L) position of each token in its own sequence.
        attention_mask: (B, L) bool, False on padding; None in the packed form.
        layout: Index tensors of the packed attention; None in the padded form.
        read: (N,) index into the flattened (B * L) tokens of each read position, row by row.
        row: (N,) int64, which of `rows` a read position belongs to; non-decreasing.
        n_tokens: Tokens that go through the model, padding included.
    """

    rows: tuple[int, ...]
    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None
    layout: PackedLayout | None
    read: Tensor
    row: Tensor
    n_tokens: int


def collate_padded(rows: Sequence[Row], chosen: Sequence[int], pad_id: int, device: torch.device) -> MicroBatch:
    """Left-padded rectangle, as a plain trainer has it.

    Padding is known by place, never by token id: a pad id that is also the EOS id changes nothing.
    """
    longest = max(len(rows[i].tokens) for i in chosen)
    input_ids = np.full((len(chosen), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(chosen), longest), dtype=bool)
    positions = np.zeros((len(chosen), longest), dtype=np.int64)
    read = []
    for r, i in enumerate(chosen):
        start = longest - len(rows[i].tokens)
        input_ids[r, start:] = rows[i].tokens
        mask[r, start:] = True
        positions[r, start:] = np.arange(longest - start)
        read.append(r * longest + start + rows[i].read)
    return MicroBatch(
        rows=tuple(chosen),
        input_ids=torch.from_numpy(input_ids).to(device),
        position_ids=torch.from_numpy(positions).to(device),
        attention_mask=torch.from_numpy(mask).to(device),
        layout=None,
        read=torch.from_numpy(np.concatenate(read)).to(device),
        row=_row_of(rows, chosen, device),
        n_tokens=input_ids.size,
    )


def collate_packed(rows: Sequence[Row], chosen: Sequence[int], pad_id: int, device: torch.device) -> MicroBatch:
    """One sequence without padding; rows with the same prompt follow its single copy.

    Args:
        rows: Rows of the optimizer step.
        chosen: Indices into `rows`; rows of a group need not be adjacent.
        pad_id: Not used: nothing is padded.
        device: Where the tensors go.
    """
    prompt_start: dict[bytes, int] = {}
    prompts: list[tuple[int, int]] = []  # (start, length) in the packed sequence
    tails: list[tuple[int, int, int]] = []  # (start, length, prompt index or -1)
    pieces: list[Ints] = []
    positions: list[Ints] = []
    read: list[Ints] = []
    length = 0
    for i in chosen:
        row = rows[i]
        prompt = -1
        if row.n_prompt:
            if row.prompt_key not in prompt_start:
                prompt_start[row.prompt_key] = len(prompts)
                prompts.append((length, row.n_prompt))
                pieces.append(row.tokens[: row.n_prompt])
                positions.append(np.arange(row.n_prompt))
                length += row.n_prompt
            prompt = prompt_start[row.prompt_key]
        base = prompts[prompt][0] if row.n_prompt else 0
        tail = row.tokens[row.n_prompt :]
        tails.append((length, len(tail), prompt))
        pieces.append(tail)
        positions.append(np.arange(row.n_prompt, len(row.tokens)))
        read.append(np.where(row.read < row.n_prompt, base + row.read, length + row.read - row.n_prompt))
        length += len(tail)
    return MicroBatch(
        rows=tuple(chosen),
        input_ids=torch.from_numpy(np.concatenate(pieces)).unsqueeze(0).to(device),
        position_ids=torch.from_numpy(np.concatenate(positions)).unsqueeze(0).to(device),
        attention_mask=None,
        layout=build_layout(prompts, tails, length, device),
        read=torch.from_numpy(np.concatenate(read)).to(device),
        row=_row_of(rows, chosen, device),
        n_tokens=length,
    )


def read_hidden(backbone: nn.Module, batch: MicroBatch, *, fused: bool = False) -> Tensor:
    """(N, hidden) last hidden states at the batch's read positions.

    Args:
        backbone: A transformers decoder without its head (`model.base_model`).
        batch: Either form.
        fused: Run a packed batch by `fused_llama`, which must support the backbone.

    Raises:
        UserError: For a packed batch and a model whose attention cannot be replaced or has a sliding window
            shorter than the batch's sequences.
    """
    if batch.layout is None:
        output = backbone(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
    elif fused:
        return read_hidden_fused(backbone, batch.input_ids, batch.position_ids, batch.layout, batch.read)
    else:
        with packed_attention(backbone):
            output = backbone(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                packed_layout=batch.layout,
            )
    hidden: Tensor = output.last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.read)


def check_packable(model: nn.Module) -> None:
    """Refuse models whose attention the packed form would change.

    Raises:
        UserError: Naming the reason and the setting that helps.
    """
    config: Any = model.config
    if not getattr(model, "_supports_attention_backend", False):
        reason = f"{type(model).__name__} has attention code of its own"
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        reason = f"{type(model).__name__} has a sliding attention window"
    elif getattr(config, "attn_logit_softcapping", None):
        reason = f"{type(model).__name__} caps its attention logits"
    else:
        return
    raise UserError(f"training.packing cannot be used: {reason}. Set training.packing = false ({PACKED_ATTENTION})")


def _row_of(rows: Sequence[Row], chosen: Sequence[int], device: torch.device) -> Tensor:
    counts = torch.tensor([len(rows[i].read) for i in chosen], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(chosen)), counts).to(device)
