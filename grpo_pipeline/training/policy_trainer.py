"""The state of one policy training, and its steps: what `policy.train_policy` drives.

A step chooses problems, gathers data (from the current policy, or from what was fixed before), turns it into
token columns, and updates. What a method is stands in `grpo_pipeline.methods`; nothing here knows its formula.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.methods.base import MethodLoss, TokenBatch
from grpo_pipeline.methods.kl import k3
from grpo_pipeline.methods.ppo import Ppo
from grpo_pipeline.methods.registry import make_method
from grpo_pipeline.prompts import PromptBuilder
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.checkpoints import load_checkpoint, prefixed, save_checkpoint, section
from grpo_pipeline.training.critic import Critic
from grpo_pipeline.training.exploration import Experience, Explorer, choose_problems
from grpo_pipeline.training.loop import Part, optimizer_step
from grpo_pipeline.training.metrics_table import MetricsTable
from grpo_pipeline.training.monitors import experience_metrics, reward_hacking
from grpo_pipeline.training.offline import (
    OfflineData,
    demonstration_data,
    fixed_sample_data,
    pair_data,
    require_tables,
)
from grpo_pipeline.training.optimizer import Optimizer, load_weights
from grpo_pipeline.training.policy_contract import OnStep, PolicyResult, check_inputs
from grpo_pipeline.training.processes import ALONE, Processes, whole_tensors
from grpo_pipeline.training.run_identity import run_identity
from grpo_pipeline.training.sampler import Sampler
from grpo_pipeline.training.token_rows import TokenRows
from grpo_pipeline.training.updates import add_weights, critic_loss, experience_rows, policy_loss, rewarded_rows


class PolicyTrainer:
    """The state of one `train_policy` call; arguments as there."""

    def __init__(
        self,
        *,
        model_dir: Path,
        workdir: Path,
        problems: pl.DataFrame,
        config: RunConfig,
        round: int,
        seed: int,
        policy_id: str,
        reward_model_dir: Path | None,
        demonstrations: pl.DataFrame | None,
        fixed_rollouts: Mapping[str, pl.DataFrame] | None,
        examples: pl.DataFrame | None,
        on_step: OnStep | None,
        processes: Processes = ALONE,
    ) -> None:
        self.processes = processes
        self.config, self.policy = config, config.policy
        self.method = make_method(self.policy)
        self.online = self.method.data == "on_policy"
        self.temperature = 1.0 if self.method.data == "demonstrations" else config.sampling.temperature
        check_inputs(problems, demonstrations, config, self.temperature, processes)
        self.round, self.seed, self.policy_id, self.workdir = round, seed, policy_id, workdir
        self.on_step = on_step
        self.step = 0
        self.updates = 0
        self.n_tokens = 0
        self.stopped_early = False
        self.hacked = False
        self.actor = Actor(model_dir, config.model, config.training, processes, seed)
        self.critic: Critic | None = None
        if self.method.needs_critic:
            self.critic = Critic(model_dir, config.model, config.training, self.policy.ppo, seed, processes)
        self.runner = self.actor.runner([self.critic.forward] if self.critic else [])
        rows = [] if examples is None else examples.select("question", "gold_solution").to_dicts()
        prompts = PromptBuilder(self.actor.tokenizer, config.prompt, rows)
        samples = self.online or (self.method.data != "demonstrations" and fixed_rollouts is None)
        self.sampler = Sampler(self.actor, model_dir, config, policy_id, samples=samples, processes=processes)
        self.engine = self.sampler.engine
        self.explorer = Explorer(
            self.engine,
            prompts,
            problems,
            method=self.method,
            config=config,
            reward_model_dir=reward_model_dir,
            round=round,
            seed=seed,
            processes=processes,
        )
        self.problem_ids = problems["problem_id"].to_list()
        self.counts = {"rollouts": 0, "sampled_tokens": 0, "undecided": 0, "prompt_too_long": 0}
        self.demonstrations: OfflineData | None = None
        if demonstrations is not None and (not self.online or self.policy.ppo.ptx_weight > 0):
            limit = self.engine.max_model_len
            self.demonstrations = demonstration_data(demonstrations, prompts, self.actor.tokenizer, limit)
        self.offline = None if self.online else self._offline_data(fixed_rollouts)
        if self.offline is not None:
            self.problem_ids = sorted(self.offline.rows)
        self.total = self._total_steps()
        updates = self.total * (self.policy.updates_per_step if self.online else 1)
        self.optimizers = {"": Optimizer(self.actor.parameters, self.policy.optimizer, updates)}
        if self.critic is not None:
            settings = self.policy.optimizer.model_copy(update={"lr": self.policy.ppo.critic_lr})
            self.optimizers["critic/"] = Optimizer(self.critic.parameters, settings, updates)
        self.table = MetricsTable("train_policy", round)
        self.run = run_identity(
            self.policy,
            config.training,
            config.sampling,
            config.prompt,
            config.labelling.splitter,
            config.reward_model.aggregate,
            config.model.dtype,
            config.engine.max_model_len,
            self.actor.source_id,
            self.explorer.reward_model_id,
            round,
            seed,
            problems.select("problem_id").sort("problem_id"),
        )

    # --- steps

    def run_step(self) -> None:
        """One exploration step, or one optimizer step of an offline method."""
        started = time.perf_counter()
        step = self.step + 1
        chosen = choose_problems(self.problem_ids, self.policy.problems_per_step, step, self.seed, self.round)
        if self.online:
            frames = self._online_step(chosen, step, started)
        else:
            frames = {"metrics": self._offline_step(chosen, started)}
        self.step = step
        # The tables are handed over before the checkpoint, so that a checkpoint never stands for a lost step.
        self._hand_out(step, frames)
        every = self.config.training.checkpoint_every
        if every and step % every == 0:
            self._save()

    def _online_step(self, chosen: list[str], step: int, started: float) -> dict[str, pl.DataFrame]:
        self.sampler.hand_over(self.version)
        experience = self.explorer.explore(chosen, step, self.version)
        sampled = time.perf_counter()
        self._count(experience)
        monitors = experience_metrics(experience)
        data, kept = experience_rows(experience, self.method, self.runner.device)
        self.counts["undecided"] += int(experience.advantages["outcome_reward"].null_count())
        skips_truncated = self.policy.method == "grpo" and self.policy.grpo.mask_truncated
        add_weights(
            data,
            self.method,
            groups=kept["problem_id"].to_list(),
            truncated=(kept["finish_reason"] == "length").to_list() if skips_truncated else None,
            max_tokens=self.config.sampling.max_tokens,
        )
        if data.rows:
            monitors |= self._before_update(data, kept)
        if self.method.reward == "rule":
            data = data.subset(rewarded_rows(data))
        # A step whose rollouts have all dropped out counts, and changes nothing.
        parts = self._parts(data, step) if data.rows else []
        metrics_frames = []
        for update in range(self.policy.updates_per_step):
            update_started = time.perf_counter()
            metrics = optimizer_step(self.optimizers, self.runner, parts)
            self.updates += 1
            now = time.perf_counter()
            times = {"time/explore": sampled - started, "time/update": now - update_started}
            if update == 0:
                times["step_time"] = now - started
                monitors["time/prepare"] = update_started - sampled
            else:
                times["step_time"] = now - update_started
            row = monitors | metrics | times | {"num_tokens": self.n_tokens, "exploration_step": step}
            self.table.add(self.updates, row)
            metrics_frames.append(self.table.last(1))
        self._watch(step)
        metrics_frame = pl.concat(metrics_frames, how="diagonal")
        return experience.frames() | {"metrics": metrics_frame}

    def _before_update(self, data: TokenRows, kept: pl.DataFrame) -> dict[str, float]:
        """Log-probabilities that the update needs, each computed once an exploration step, and only if used."""
        metrics: dict[str, float] = {}
        watches_kl = self.policy.kl_limit is not None
        several = self.policy.updates_per_step > 1
        if several or self.critic is not None or (watches_kl and not self.method.needs_reference):
            data.columns["old_logprobs"] = self.actor.read_logprobs(self.runner, data, self.temperature)
        if self.method.needs_reference or watches_kl:
            data.columns["ref_logprobs"] = self.actor.reference_logprobs(self.runner, data, self.temperature)
        if "old_logprobs" in data.columns and "ref_logprobs" in data.columns:
            metrics["kl"] = float(k3(data.columns["old_logprobs"], data.columns["ref_logprobs"]).mean())
        if self.critic is not None:
            metrics |= self.critic.prepare(self.runner, data, kept["outcome_reward"].to_list())
        return metrics

    def _parts(self, data: TokenRows, step: int) -> list[Part]:
        method = self.method
        if isinstance(method, Ppo) and self.critic is not None:
            if step <= self.policy.ppo.critic_warmup:
                return [Part(data.rows, critic_loss(self.critic, self.runner, data, method.critic_loss))]
            part = policy_loss(
                self.actor, self.runner, data, method.loss, temperature=self.temperature, critic=self.critic
            )
            parts = [Part(data.rows, part)]
            if self.policy.ppo.ptx_weight > 0:
                parts.append(self._demonstration_part(method.demonstration_loss, step))
            return parts
        return [Part(data.rows, policy_loss(self.actor, self.runner, data, method.loss, temperature=self.temperature))]

    def _demonstration_part(self, loss: Callable[[TokenBatch], MethodLoss], step: int) -> Part:
        assert self.demonstrations is not None
        known = list(self.demonstrations.rows)
        chosen = choose_problems(known, self.policy.problems_per_step, step, self.seed + 1, self.round)
        rows, _ = self.demonstrations.of(chosen)
        data = TokenRows(rows, self.runner.device)
        add_weights(data, self.method, groups=None, truncated=None, max_tokens=self.engine.max_model_len)
        return Part(rows, policy_loss(self.actor, self.runner, data, loss, temperature=1.0))

    def _offline_step(self, chosen: list[str], started: float) -> pl.DataFrame:
        assert self.offline is not None
        rows, rewards = self.offline.of(chosen)
        data = TokenRows(rows, self.runner.device)
        data.columns["advantages"] = data.spread(rewards)
        add_weights(data, self.method, groups=None, truncated=None, max_tokens=self.engine.max_model_len)
        if self.method.needs_reference:
            data.columns["ref_logprobs"] = self.actor.reference_logprobs(self.runner, data, self.temperature)
        if self.method.data == "fixed_samples":
            data = data.subset(rewarded_rows(data))
        loss = policy_loss(self.actor, self.runner, data, self.method.loss, temperature=self.temperature)
        metrics = optimizer_step(self.optimizers, self.runner, [Part(data.rows, loss, self.offline.together)])
        self.updates += 1
        self.n_tokens += sum(len(row.tokens) for row in rows)
        metrics |= {"reward": sum(rewards) / len(rewards), "num_tokens": self.n_tokens}
        self.table.add(self.updates, metrics | {"step_time": time.perf_counter() - started})
        return self.table.last(1)

    @property
    def version(self) -> str:
        """The policy version of the present weights."""
        return f"{self.policy_id}@{self.updates}" if self.updates else self.policy_id

    def _hand_out(self, step: int, frames: dict[str, pl.DataFrame]) -> None:
        if self.on_step is not None and self.processes.is_main:
            self.on_step(step, frames)

    def _watch(self, step: int) -> None:
        """Early stop and alarm, on the rows so far."""
        first_of_step = {row["exploration_step"]: row for row in reversed(self.table.rows)}
        rows = [first_of_step[key] for key in sorted(first_of_step)]
        alarm = reward_hacking(rows)
        self.table.rows[-1]["alarm/reward_hacking"] = float(alarm)
        self.hacked = self.hacked or alarm
        kl = self.table.rows[-1].get("kl")
        if self.policy.kl_limit is not None and kl is not None and kl > self.policy.kl_limit:
            self.stopped_early = True

    def _count(self, experience: Experience) -> None:
        rollouts = experience.rollouts
        sampled = int(rollouts["token_ids"].list.len().sum())
        self.counts["rollouts"] += rollouts.height
        self.counts["sampled_tokens"] += sampled
        self.counts["prompt_too_long"] += experience.prompt_too_long
        self.n_tokens += sampled + int(rollouts["prompt_token_ids"].list.len().sum())

    # --- data of offline methods

    def _offline_data(self, fixed: Mapping[str, pl.DataFrame] | None) -> OfflineData:
        if self.method.data == "demonstrations":
            if self.demonstrations is None:
                raise UserError(
                    f"policy.method = {self.policy.method!r} needs demonstrations: problems with gold_solution"
                )
            self.counts |= self.demonstrations.counts
            return self.demonstrations
        if fixed is None:
            fixed = self._sample_fixed()
        rollouts, checked = require_tables(fixed)
        rollouts = rollouts.filter(pl.col("problem_id").is_in(self.problem_ids))
        if self.method.data == "pairs":
            data = pair_data(rollouts, checked, self.policy.dpo.pairs_per_problem, self.seed)
        else:
            data = fixed_sample_data(rollouts, checked)
        self.counts |= data.counts
        return data

    def _sample_fixed(self) -> dict[str, pl.DataFrame]:
        """Samples of the SFT model for as many problems as the steps will use."""
        needed: dict[str, None] = {}
        for step in range(1, self.policy.steps + 1):
            needed |= dict.fromkeys(
                choose_problems(self.problem_ids, self.policy.problems_per_step, step, self.seed, self.round)
            )
        experience = self.explorer.explore(list(needed), None, self.version)
        self._count(experience)
        self._hand_out(0, experience.frames())
        self.sampler.close()  # nothing more is sampled
        return experience.frames()

    def _total_steps(self) -> int:
        if self.online:
            return self.policy.steps
        per_epoch = max(1, len(self.problem_ids) // min(self.policy.problems_per_step, len(self.problem_ids)))
        return min(self.policy.steps, per_epoch * self.policy.epochs)

    # --- checkpoints

    def resume(self) -> None:
        """Take up the newest checkpoint of this very run, if there is one."""
        saved = load_checkpoint(self.workdir, self.run)
        if saved is None:
            return
        state = saved.state
        load_weights(self.actor.parameters, section(saved.tensors, "policy"))
        if self.critic is not None:
            load_weights(self.critic.parameters, section(saved.tensors, "critic"))
            self.critic.load_state(state["critic"])
        for prefix, optimizer in self.optimizers.items():
            optimizer.load_tensors(section(saved.tensors, f"optimizer{prefix}"), state["updates"])
        self.step, self.updates = saved.step, state["updates"]
        self.n_tokens, self.counts = state["n_tokens"], state["counts"]
        self.stopped_early, self.hacked = state["stopped_early"], state["hacked"]
        self.table.load(state["metrics"])

    def _save(self) -> None:
        tensors = whole_tensors(prefixed("policy", self.actor.parameters))
        state: dict[str, Any] = {
            "updates": self.updates,
            "n_tokens": self.n_tokens,
            "counts": self.counts,
            "stopped_early": self.stopped_early,
            "hacked": self.hacked,
            "metrics": self.table.rows,
            "reference_id": self.actor.source_id,
            "reward_model_id": self.explorer.reward_model_id,
        }
        if self.critic is not None:
            tensors |= whole_tensors(prefixed("critic", self.critic.parameters))
            state["critic"] = self.critic.state()
        for prefix, optimizer in self.optimizers.items():
            tensors |= prefixed(f"optimizer{prefix}", optimizer.tensors())
        if self.processes.is_main:
            save_checkpoint(self.workdir, self.step, tensors, state, self.run)

    def finish(self, out_dir: Path) -> PolicyResult:
        """Save the policy."""
        parents = [self.actor.source_id]
        if self.explorer.reward_model_id is not None:
            parents.append(self.explorer.reward_model_id)
        settings = {"policy": self.policy.model_dump(mode="json"), "round": self.round, "seed": self.seed}
        trained = self.actor.save(out_dir, parents, settings)
        counts = self.counts | {"steps": self.step, "optimizer_steps": self.updates}
        return PolicyResult(trained, self.table.frame(), counts, self.stopped_early, self.hacked)

    def close(self) -> None:
        """Free the engine."""
        self.sampler.close()
