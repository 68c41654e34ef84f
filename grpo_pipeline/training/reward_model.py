"""Training of reward models: PRM, ORM and pairwise, through the same optimizer step as policies.

The first reward model starts from a policy's backbone with a new head; a refreshed one goes on from the
reward model before it (METHOD 6).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from grpo_pipeline.config import ModelConfig, RewardModelConfig, TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.methods.base import MethodLoss
from grpo_pipeline.methods.metrics import mean_of
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.loading import read_info
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.reward_losses import labelled_weights, language_model_loss, pairwise_loss, step_bce_loss
from grpo_pipeline.progress import progress
from grpo_pipeline.training.adapters import add_adapters, merge_adapters
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.checkpoints import load_checkpoint, prefixed, save_checkpoint, section
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.logprobs import token_logprobs
from grpo_pipeline.training.loop import LossOf, Part, optimizer_step
from grpo_pipeline.training.metrics_table import MetricsTable
from grpo_pipeline.training.optimizer import Optimizer, load_weights, trainable_parameters
from grpo_pipeline.training.reward_rows import RewardRows, epoch_batches, labelled_rows, pair_rows
from grpo_pipeline.training.run_identity import run_identity
from grpo_pipeline.training.runner import Runner

OnStep = Callable[[int, dict[str, pl.DataFrame]], None]
"""Called after every optimizer step with its number, from 1, and its frames."""


@dataclass(frozen=True)
class RewardModelResult:
    """A trained reward model.

    Attributes:
        model_id: Content id of the folder that was written.
        metrics: `metrics` table, a row an optimizer step.
        counts: rows, what was dropped for which reason, tokens, optimizer_steps.
    """

    model_id: str
    metrics: pl.DataFrame
    counts: dict[str, int]


def train_reward_model(
    *,
    dataset: pl.DataFrame,
    model_dir: Path,
    out_dir: Path,
    workdir: Path,
    config: RewardModelConfig,
    training: TrainingConfig,
    seed: int,
    round: int = 0,
    model: ModelConfig | None = None,
    parents: Sequence[str] = (),
    on_step: OnStep | None = None,
) -> RewardModelResult:
    """Train a reward model and save it.

    Args:
        dataset: `prm_dataset` rows of training problems (PRM, ORM), or the pairs of `prm_dataset.build_pairs`.
        model_dir: A policy, whose backbone gets a new head, or a reward model of the same kind to go on from.
        out_dir: Where the model is saved.
        workdir: Where checkpoints are; a run that was killed goes on from there to the same weights.
        config: Kind, label, optimizer, epochs.
        training: Layout, token budget, checkpoints, adapters.
        seed: Seed of the head and of the order of rows.
        round: RL round that the metrics are stamped with.
        model: Device, type and trust of the backbone.
        parents: Further ids for the model's description: fingerprints of the data.
        on_step: Receives `{"metrics": one row}` after each optimizer step. After a resume the steps since the
            last checkpoint come again, with the same values but for the times.

    Raises:
        UserError: A folder that does not fit, no usable row, or memory that does not hold a few tokens.
        ValueError: A row of an evaluation problem.
    """
    place = model or ModelConfig()
    net = _open(model_dir, config, place, seed)
    pairwise = config.kind == "pairwise"
    data = (pair_rows if pairwise else labelled_rows)(dataset, config, net.max_length)
    wrapper = add_adapters(net.model, training.lora, net.head) if training.lora else None
    per_epoch = -(-data.n_units // config.batch_size)
    total = per_epoch * config.epochs
    parameters = trainable_parameters(net)
    optimizer = Optimizer(parameters, config.optimizer, total)
    runner = Runner([net.model], 0, training)
    table = MetricsTable("train_reward_model", round)
    source = content_id(model_dir)
    run = run_identity(config, training, seed, round, source, dataset)
    tokens = 0
    saved = load_checkpoint(workdir, run)
    if saved is not None:
        load_weights(parameters, section(saved.tensors, "weights"))
        optimizer.load_tensors(section(saved.tensors, "optimizer"), saved.step)
        table.load(saved.state["metrics"])
        tokens = saved.state["tokens"]
    with progress(f"training {config.kind}", total, "steps") as bar:
        bar.advance(optimizer.steps)
        while optimizer.steps < total:
            epoch, index = divmod(optimizer.steps, per_epoch)
            units = epoch_batches(data, config.batch_size, seed, epoch)[index]
            chosen = [unit * data.together + i for unit in units for i in range(data.together)]
            started = time.perf_counter()
            rows = [data.rows[i] for i in chosen]
            loss_of = _pairwise_loss(net, runner, rows, config) if pairwise else _label_loss(net, runner, data, chosen)
            metrics = optimizer_step({"": optimizer}, runner, [Part(rows, loss_of, data.together)])
            tokens += sum(len(row.tokens) for row in rows)
            metrics |= {"epoch": optimizer.steps / per_epoch, "num_tokens": tokens}
            frame = table.add(optimizer.steps, metrics | {"step_time": time.perf_counter() - started})
            if on_step is not None:
                on_step(optimizer.steps, {"metrics": frame})
            if training.checkpoint_every and optimizer.steps % training.checkpoint_every == 0:
                tensors = prefixed("weights", parameters) | prefixed("optimizer", optimizer.tensors())
                state = {"metrics": table.rows, "tokens": tokens}
                save_checkpoint(workdir, optimizer.steps, tensors, state, run)
            bar.advance()
    if wrapper is not None:
        merge_adapters(wrapper)
    settings = {"reward_model": config.model_dump(mode="json"), "round": round, "seed": seed}
    model_id = net.save(out_dir, parents=[source, *parents], settings=settings)
    counts = data.counts | {"tokens": tokens, "optimizer_steps": optimizer.steps}
    return RewardModelResult(model_id, table.frame(), counts)


def _open(folder: Path, config: RewardModelConfig, place: ModelConfig, seed: int) -> RewardModel:
    # float32 weights unless told otherwise: small updates vanish in bfloat16; autocast gives its speed.
    dtype = "float32" if place.dtype == "auto" else place.dtype
    info = read_info(folder)
    if info is None or info.kind == "policy":
        return RewardModel.from_policy(
            folder,
            config.kind,
            seed,
            with_lm_head=config.beta_rm > 0,
            dtype=dtype,
            device=place.device,
            trust_remote_code=place.trust_remote_code,
        )
    if info.kind != config.kind:
        raise UserError(
            f"{folder}: a {info.kind} model, but reward_model.kind is {config.kind}; it cannot be trained on"
        )
    return RewardModel.load(folder, dtype=dtype, device=place.device, trust_remote_code=place.trust_remote_code)


def _label_loss(net: RewardModel, runner: Runner, data: RewardRows, chosen: Sequence[int]) -> LossOf:
    """Binary cross-entropy, averaged over the labelled steps of the whole optimizer step."""
    labels = [torch.from_numpy(data.labels[i]).to(runner.device) for i in chosen]
    share = labelled_weights(torch.cat(labels))[0]

    def loss_of(batch: MicroBatch) -> MethodLoss:
        logits = net.head_logits(runner.hidden(batch))
        targets = torch.cat([labels[i] for i in batch.rows])
        loss = step_bce_loss(logits, targets, share.expand_as(logits))
        probability = logits.detach().sigmoid()
        metrics = {
            "accuracy": mean_of(((probability > 0.5) == (targets > 0.5)).float()),
            "mean_score": mean_of(probability),
            "mean_label": mean_of(targets),
        }
        return MethodLoss(loss, metrics)

    return loss_of


def _pairwise_loss(net: RewardModel, runner: Runner, rows: Sequence[Row], config: RewardModelConfig) -> LossOf:
    """Bradley-Terry over the pairs of the optimizer step, and beta_rm times the LM loss of the chosen."""
    share = 2 / len(rows)
    lm_head = net.lm_projection() if config.beta_rm > 0 else None

    def loss_of(batch: MicroBatch) -> MethodLoss:
        hidden = runner.hidden(batch)
        counts = torch.bincount(batch.row, minlength=len(batch.rows))
        last = counts.cumsum(0) - 1
        rewards = net.head_logits(hidden.index_select(0, last)).view(-1, 2)
        weights = torch.full_like(rewards[:, 0], share)
        loss = pairwise_loss(rewards[:, 0], rewards[:, 1], weights)
        margin = (rewards[:, 0] - rewards[:, 1]).detach()
        metrics = {"accuracy": mean_of((margin > 0).float()), "margin": mean_of(margin)}
        if lm_head is not None:
            is_lm = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
            is_lm[last] = False
            targets = torch.cat([_targets(rows[i]) for i in batch.rows[::2]]).to(hidden.device)
            logprobs, _ = token_logprobs(hidden[is_lm], lm_head, targets, 1.0)
            per_token = share / (counts - 1).clamp(min=1)
            loss = loss + language_model_loss(logprobs, per_token[batch.row[is_lm]].to(logprobs.dtype), config.beta_rm)
            metrics["nll"] = mean_of(-logprobs)
        return MethodLoss(loss, metrics)

    return loss_of


def _targets(row: Row) -> Tensor:
    """The tokens that a chosen row's language-model positions predict."""
    return torch.from_numpy(row.tokens[np.asarray(row.read[:-1]) + 1])
