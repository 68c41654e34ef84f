"""The embedded model's recipe: a small Llama that solves word problems with bad habits.

``grpo-pipeline make-tiny`` makes ``data/tiny/``: demonstrations of generated problems with habits in them
(:mod:`grpo_pipeline.models.demonstrations`), a tokenizer, a causal language model of about a third of a
million parameters trained on them, and a card with what was measured on held-out problems. Seeded: the same
seed, package versions and thread count give the same model on the same machine. Making it took under ten
minutes of CPU time, training and measuring together.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_pipeline.models.demonstrations import demonstrate
from grpo_pipeline.models.tiny_card import measure, write_card
from grpo_pipeline.models.tiny_tokenizer import train_tokenizer
from grpo_pipeline.problems.synthetic import (
    LARGEST_VALUE,
    SMALLEST_VALUE,
    apply,
    draw_operation,
    draw_times,
    generate_problems,
)
from grpo_pipeline.prompts import build_prompt
from grpo_pipeline.store.filesystem import apply_umask

_IGNORED = -100


@dataclass(frozen=True)
class TinyRecipe:
    """What decides the embedded model, apart from the seed.

    Attributes:
        hidden, layers, heads, kv_heads, intermediate: The Llama's shape; the head size is 32, which is the
            smallest that vLLM's CPU attention takes.
        max_positions: Longest question and response together, in tokens.
        short, long: Numbers of demonstrations with 1 to 4 and with 5 to 10 steps.
        init: Standard deviation of the initial weights. The usual 0.02 is made for wide models; near
            1/sqrt(hidden) a narrow one starts to learn at once.
        drills, drill_batch: Updates on bare arithmetic before the demonstrations, and chains in each. They
            are cheap, having no question to read, and put the arithmetic itself beyond doubt.
        steps, batch: Updates on demonstrations, and demonstrations in each.
        lr, warmup: AdamW's peak learning rate (cosine to a twentieth of it) and updates until the peak.
    """

    hidden: int = 96
    layers: int = 3
    heads: int = 3
    kv_heads: int = 1
    intermediate: int = 256
    max_positions: int = 512
    short: int = 45_000
    long: int = 3_000
    init: float = 0.08
    drills: int = 250
    drill_batch: int = 64
    steps: int = 1_500
    batch: int = 32
    lr: float = 4e-3
    warmup: int = 100


@dataclass(frozen=True)
class Demonstration:
    """Token ids of one demonstration: the prompt, then the response with its EOS."""

    prompt: list[int]
    response: list[int]

    def __len__(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.response)


def make_tiny(out: Path, seed: int = 0, recipe: TinyRecipe | None = None, measured: int = 1000) -> None:
    """Make the embedded model and everything beside it.

    Args:
        out: Folder to write config, weights (safetensors), tokenizer and README.md into.
        seed: Decides demonstrations, initial weights and order.
        recipe: The shape and the training; the default is what ``data/tiny/`` was made with.
        measured: Held-out problems that the card's accuracies are measured on.
    """
    recipe = recipe or TinyRecipe()
    texts = demonstration_texts(recipe, seed)
    tokenizer = train_tokenizer(part for pair in texts[:5000] for part in pair)
    demonstrations = encode(tokenizer, texts)
    drills = encode(tokenizer, drill_texts(recipe.drills * recipe.drill_batch, seed))
    torch.manual_seed(seed)
    model = build_model(recipe, tokenizer)
    train(model, drills, demonstrations, recipe, seed)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    figures = measure(model, tokenizer, measured, seed)
    write_card(out, figures, seed, recipe)
    apply_umask(out)


def demonstration_texts(recipe: TinyRecipe, seed: int) -> list[tuple[str, str]]:
    """Pairs of prompt and response, of problems that no run is ever given (see ``synthetic.pool_of``)."""
    rows = generate_problems(recipe.short, seed, 1, 4, pool="demonstrations")
    rows += generate_problems(recipe.long, seed, 5, 10, pool="demonstrations")
    rng = random.Random(seed)
    return [(build_prompt(row["question"]), demonstrate(row["meta"], rng)) for row in rows]


def drill_texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Empty prompts and chains of four right equations: ``May: 12 + 5 = 17``, ``June: 17 * 2 = 34``."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        value, lines = rng.randint(SMALLEST_VALUE, LARGEST_VALUE), []
        for time in draw_times(rng, 4)[1]:
            wording, operand = draw_operation(rng, value)
            result = apply(wording.operator, value, operand)
            lines.append(f"{time}: {value} {wording.operator} {operand} = {result}")
            value = result
        texts.append(("", "\n".join(lines)))
    return texts


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> list[Demonstration]:
    """Prompts and responses tokenised apart, as at sampling time, so that no token spans both."""
    prompts = tokenizer([prompt for prompt, _ in texts])["input_ids"]
    responses = tokenizer([response for _, response in texts])["input_ids"]
    end = [tokenizer.eos_token_id]
    return [Demonstration(p, r + end) for p, r in zip(prompts, responses, strict=True)]


def build_model(recipe: TinyRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained Llama of the recipe's shape; uses torch's global seed."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.heads,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=recipe.init,
        attention_dropout=0.0,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def train(
    model: LlamaForCausalLM,
    drills: list[Demonstration],
    demonstrations: list[Demonstration],
    recipe: TinyRecipe,
    seed: int,
) -> list[float]:
    """Supervised training on drills, then on the demonstrations' responses.

    Returns:
        The mean loss per response token of every update.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_share(step, recipe))
    console = Console(stderr=True)
    batches = track(
        _batches(drills, recipe.drills, recipe.drill_batch, seed)
        + _batches(demonstrations, recipe.steps, recipe.batch, seed),
        "training the embedded model",
        console=console,
        disable=not console.is_terminal,
    )
    losses = []
    model.train()
    for batch in batches:
        input_ids, labels = _collate(batch)  # (B, T), (B, T)
        # Right padding under a causal mask: what stands after a sequence cannot reach its loss.
        hidden = model.model(input_ids=input_ids).last_hidden_state[:, :-1]  # (B, T-1, H)
        targets = labels[:, 1:]
        wanted = targets != _IGNORED
        loss = functional.cross_entropy(model.lm_head(hidden[wanted]), targets[wanted])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


def _batches(data: list[Demonstration], count: int, size: int, seed: int) -> list[list[Demonstration]]:
    """``count`` batches of ``size``: epochs in seeded order, each batch of similar lengths (less padding)."""
    if count and len(data) < size:
        raise ValueError(f"a batch of {size} needs at least as many demonstrations, not {len(data)}")
    rng = random.Random(seed)
    batches: list[list[Demonstration]] = []
    while len(batches) < count:
        # Jitter keeps the neighbours of a demonstration from being the same in every epoch.
        order = sorted(data, key=lambda d: len(d) + 16 * rng.random())
        epoch = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        rng.shuffle(epoch)
        batches += epoch
    return batches[:count]


def _collate(batch: list[Demonstration]) -> tuple[Tensor, Tensor]:
    """Right-padded token ids and labels, both (B, T); prompt and padding carry no label."""
    longest = max(map(len, batch))
    input_ids = torch.zeros((len(batch), longest), dtype=torch.long)
    labels = torch.full((len(batch), longest), _IGNORED)
    for row, one in enumerate(batch):
        input_ids[row, : len(one)] = torch.tensor(one.prompt + one.response)
        labels[row, len(one.prompt) : len(one)] = torch.tensor(one.response)
    return input_ids, labels


def _lr_share(step: int, recipe: TinyRecipe) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.drills + recipe.steps - recipe.warmup)
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * done))


def make_tiny_command(
    out: Annotated[Path, typer.Option(help="Folder to write the model into.")] = Path("data/tiny"),
    seed: Annotated[int, typer.Option(help="Decides demonstrations, initial weights and order.")] = 0,
) -> None:
    """Make the embedded model: demonstrations, tokenizer, training, measuring, model card."""
    make_tiny(out, seed)
    typer.echo(f"wrote {out} (see {out / 'README.md'} for what was measured)")
