"""Training of reward models: PRM, ORM and pairwise, through the same optimizer step as policies.

The first reward model starts from a policy's backbone with a new head; a refreshed one goes on from the
reward model before it (METHOD 6).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from grpo_pipeline.training.processes import ALONE, Processes, whole_tensors
from grpo_pipeline.training.reward_rows import RewardRows, epoch_batches, labelled_rows, pair_rows
from grpo_pipeline.training.run_identity import run_identity
from grpo_pipeline.training.runner import Forward, Runner

OnStep = Callable[[int, dict[str, pl.DataFrame]], None]
"""Called with the number of optimizer steps done, and the frames of those since the call before."""


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
    steps_at_once: int = 1,
    processes: Processes = ALONE,
) -> RewardModelResult:
    """Train a reward model and save it.

    Args:
        dataset: `prm_dataset` rows of training problems (PRM, ORM), or `preference_pairs` rows (pairwise).
        model_dir: A policy, whose backbone gets a new head, or a reward model of the same kind to go on from.
        out_dir: Where the model is saved.
        workdir: Where checkpoints are; a run that was killed goes on from there to the same weights.
        config: Kind, label, optimizer, epochs.
        training: Layout, token budget, checkpoints, adapters.
        seed: Seed of the head and of the order of rows.
        round: RL round that the metrics are stamped with.
        model: Device, type and trust of the backbone.
        parents: Further ids for the model's description: fingerprints of the data.
        on_step: Receives `{"metrics": a row for each step since the last multiple of steps_at_once}`. After a resume
            the steps since the last checkpoint come again, under the same numbers and with the same values but for
            the times. Called in the main process only.
        steps_at_once: Optimizer steps between two calls of `on_step`, which is called after the last step too.
        processes: The processes that train together; all of them call this with the same arguments.

    Raises:
        UserError: A folder that does not fit, no usable row, or memory that does not hold a few tokens.
        ValueError: A row of an evaluation problem.
    """
    trainer = _Trainer(
        dataset,
        model_dir,
        workdir,
        config,
        training,
        model or ModelConfig(),
        seed=seed,
        round=round,
        processes=processes,
    )
    trainer.resume()
    with progress(f"training {config.kind}", trainer.total, "steps") as bar:
        bar.advance(trainer.optimizer.steps)
        while trainer.optimizer.steps < trainer.total:
            trainer.run_step()
            steps = trainer.optimizer.steps
            if on_step is not None and processes.is_main and (steps % steps_at_once == 0 or steps == trainer.total):
                on_step(steps, {"metrics": trainer.table.last((steps - 1) % steps_at_once + 1)})
            if training.checkpoint_every and steps % training.checkpoint_every == 0:
                trainer.checkpoint()
            bar.advance()
    model_id = trainer.save(out_dir, parents)
    counts = trainer.data.counts | {"tokens": trainer.tokens, "optimizer_steps": trainer.optimizer.steps}
    return RewardModelResult(model_id, trainer.table.frame(), counts)


class _Trainer:
    """The state of one `train_reward_model` call; arguments as there."""

    def __init__(
        self,
        dataset: pl.DataFrame,
        model_dir: Path,
        workdir: Path,
        config: RewardModelConfig,
        training: TrainingConfig,
        place: ModelConfig,
        *,
        seed: int,
        round: int,
        processes: Processes,
    ) -> None:
        self._folder, self._workdir = model_dir, workdir
        self._config, self._training, self._place = config, training, place
        self._seed, self._round, self._processes = seed, round, processes
        device = processes.load_device(place.device)
        self._net = _open(model_dir, config, place.model_copy(update={"device": device}), seed)
        if config.kind == "pairwise":
            self.data = pair_rows(dataset, config, self._net.max_length)
        else:
            self.data = labelled_rows(dataset, config, self._net.max_length, self._net.tag)
        self._wrapper = _adapt(self._net, training, seed)
        forward = Forward(self._net.model, self._net.lm_head)
        processes.shard(forward)
        self._per_epoch = -(-self.data.n_units // config.batch_size)
        self.total = self._per_epoch * config.epochs
        self._parameters = trainable_parameters(self._net)
        self.optimizer = Optimizer(self._parameters, config.optimizer, self.total)
        self._runner = Runner([forward], 0, training, processes)
        self.table = MetricsTable("train_reward_model", round)
        self._source = content_id(model_dir)
        self._run = run_identity(config, training, seed, round, self._source, dataset)
        self.tokens = 0
        self._epoch: int | None = None
        self._batches: list[list[int]] = []

    def resume(self) -> None:
        """Take up the newest checkpoint of this very run, if there is one."""
        saved = load_checkpoint(self._workdir, self._run)
        if saved is None:
            return
        load_weights(self._parameters, section(saved.tensors, "weights"))
        self.optimizer.load_tensors(section(saved.tensors, "optimizer"), saved.step)
        self.table.load(saved.state["metrics"])
        self.tokens = saved.state["tokens"]

    def run_step(self) -> None:
        """One optimizer step, and its row of metrics."""
        epoch, index = divmod(self.optimizer.steps, self._per_epoch)
        if self._epoch != epoch:
            self._epoch = epoch
            self._batches = epoch_batches(self.data, self._config.batch_size, self._seed, epoch)
        units = self._batches[index]
        together = self.data.together
        chosen = [unit * together + i for unit in units for i in range(together)]
        started = time.perf_counter()
        rows = [self.data.rows[i] for i in chosen]
        if self._config.kind == "pairwise":
            loss_of = _pairwise_loss(self._net, self._runner, rows, self._config)
        else:
            loss_of = _label_loss(self._net, self._runner, self.data, chosen)
        metrics = optimizer_step({"": self.optimizer}, self._runner, [Part(rows, loss_of, together)])
        self.tokens += sum(len(row.tokens) for row in rows)
        metrics |= {"epoch": self.optimizer.steps / self._per_epoch, "num_tokens": self.tokens}
        self.table.add(self.optimizer.steps, metrics | {"step_time": time.perf_counter() - started})

    def checkpoint(self) -> None:
        """Write a checkpoint; all processes call it."""
        tensors = prefixed("weights", whole_tensors(self._parameters)) | prefixed("optimizer", self.optimizer.tensors())
        state = {"metrics": self.table.rows, "tokens": self.tokens}
        if self._processes.is_main:
            save_checkpoint(self._workdir, self.optimizer.steps, tensors, state, self._run)

    def save(self, folder: Path, parents: Sequence[str]) -> str:
        """Write the model, adapters merged; returns its content id. All processes call it; training ends here."""
        weights = whole_tensors(self._parameters) if self._processes.is_sharded else None
        return self._processes.from_main(lambda: self._write(folder, parents, weights))

    def _write(self, folder: Path, parents: Sequence[str], weights: Mapping[str, Tensor] | None) -> str:
        net, wrapper = self._net, self._wrapper
        if weights is not None:
            # In one piece, on the CPU: what is sharded can neither be merged nor saved.
            place = self._place.model_copy(update={"device": "cpu"})
            net = _open(self._folder, self._config, place, self._seed)
            wrapper = _adapt(net, self._training, self._seed)
            load_weights(trainable_parameters(net), weights)
        if wrapper is not None:
            merge_adapters(wrapper)
        described = {"reward_model": self._config.model_dump(mode="json"), "round": self._round, "seed": self._seed}
        return net.save(folder, parents=[self._source, *parents], settings=described)


def _open(folder: Path, config: RewardModelConfig, place: ModelConfig, seed: int) -> RewardModel:
    # float32 weights unless told otherwise: small updates vanish in bfloat16; autocast gives its speed.
    dtype = "float32" if place.dtype == "auto" else place.dtype
    info = read_info(folder)
    form = config.token_form
    if info is None or info.kind == "policy":
        return RewardModel.from_policy(
            folder,
            config.kind,
            seed,
            plus_minus=None if form is None else (form.good, form.bad),
            tag=None if form is None else form.tag,
            with_lm_head=config.beta_rm > 0,
            dtype=dtype,
            device=place.device,
            trust_remote_code=place.trust_remote_code,
        )
    if info.kind != config.kind:
        raise UserError(
            f"{folder}: a {info.kind} model, but reward_model.kind is {config.kind}; it cannot be trained on"
        )
    net = RewardModel.load(folder, dtype=dtype, device=place.device, trust_remote_code=place.trust_remote_code)
    if (net.plus_minus is None) != (form is None):
        found, wanted = ("tokens", "a scalar head") if net.plus_minus else ("a scalar head", "tokens")
        raise UserError(
            f"{folder}: a prm with {found}, but reward_model.token_form asks for {wanted}; go on with the form that it "
            "has, or start from a policy"
        )
    return net


def _adapt(net: RewardModel, training: TrainingConfig, seed: int) -> Any:
    if training.lora is None:
        return None
    # The token form has no new head to be trained in full: its head is the whole vocabulary's.
    return add_adapters(net.model, training.lora, None if net.plus_minus else net.head, seed=seed)


def _label_loss(net: RewardModel, runner: Runner, data: RewardRows, chosen: Sequence[int]) -> LossOf:
    """Binary cross-entropy, averaged over the labelled steps of the whole optimizer step."""
    labels = [torch.from_numpy(data.labels[i]).to(runner.device) for i in chosen]
    share = labelled_weights(torch.cat(labels))[0]

    def loss_of(batch: MicroBatch) -> MethodLoss:
        logits = runner.read(batch, net.head_logits)
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
    has_lm = config.beta_rm > 0

    def loss_of(batch: MicroBatch) -> MethodLoss:
        counts = torch.bincount(batch.row, minlength=len(batch.rows))
        last = counts.cumsum(0) - 1
        is_lm = torch.ones(len(batch.row), dtype=torch.bool, device=runner.device)
        is_lm[last] = False
        targets = torch.cat([_targets(rows[i]) for i in batch.rows[::2]]).to(runner.device) if has_lm else None

        def read(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
            judged = net.head_logits(hidden.index_select(0, last))
            if targets is None:
                return judged, None
            return judged, token_logprobs(hidden[is_lm], net.lm_projection(), targets, 1.0)[0]

        judged, logprobs = runner.read(batch, read)
        rewards = judged.view(-1, 2)
        weights = torch.full_like(rewards[:, 0], share)
        loss = pairwise_loss(rewards[:, 0], rewards[:, 1], weights)
        margin = (rewards[:, 0] - rewards[:, 1]).detach()
        metrics = {"accuracy": mean_of((margin > 0).float()), "margin": mean_of(margin)}
        if logprobs is not None:
            per_token = share / (counts - 1).clamp(min=1)
            loss = loss + language_model_loss(logprobs, per_token[batch.row[is_lm]].to(logprobs.dtype), config.beta_rm)
            metrics["nll"] = mean_of(-logprobs)
        return MethodLoss(loss, metrics)

    return loss_of


def _targets(row: Row) -> Tensor:
    """The tokens that a chosen row's language-model positions predict."""
    return torch.from_numpy(row.tokens[np.asarray(row.read[:-1]) + 1])
