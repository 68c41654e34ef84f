"""What a reward model is trained on, as rows with labels: prm_dataset rows, or preference pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from grpo_pipeline.config import RewardModelConfig
from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.sequences import insert_tags
from grpo_pipeline.prm_dataset import require_training_rows
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.training.batching import Row


@dataclass(frozen=True)
class RewardRows:
    """Rows of a training set, in units that stay together.

    Attributes:
        rows: One a solution; for pairs the chosen and the rejected one after the other.
        labels: (K,) float32 label of each read position of each row; empty for pairs.
        problem: The problem of each row.
        together: 1, or 2 for pairs.
        counts: rows, and what was dropped for which reason.
    """

    rows: list[Row]
    labels: list[npt.NDArray[np.float32]]
    problem: list[str]
    together: int
    counts: dict[str, int]

    @property
    def n_units(self) -> int:
        """Solutions, or pairs."""
        return len(self.rows) // self.together


def labelled_rows(
    dataset: pl.DataFrame, config: RewardModelConfig, context: int | None, tag: int | None = None
) -> RewardRows:
    """Rows of a PRM (a label at each labelled step) or an ORM (one at the last step).

    Tokens after the last label are left out: attention is causal, so they change nothing. The tokens that all
    solutions of a problem have in common are its shared prompt.

    Args:
        dataset: `prm_dataset` columns, of training problems only.
        config: Which label, and the longest row.
        context: The model's context; None for no limit.
        tag: Token put after every step, where it is judged; None judges the step's last token.

    Raises:
        ValueError: A row of an evaluation problem, or one with unequal numbers of positions and labels.
        UserError: If no row is left.
    """
    require_training_rows(dataset)
    counts = {"rows": 0, "unlabelled": 0, "too_long": 0}
    limit = config.max_length if context is None else min(config.max_length, context)
    kept: list[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
    columns = dataset.select("rollout_id", "problem_id", "input_ids", "step_positions", config.label)
    for rollout_id, problem_id, sampled, step_ends, labels in columns.iter_rows():
        if len(step_ends) != len(labels):
            raise ValueError(f"rollout {rollout_id}: {len(step_ends)} label positions for {len(labels)} labels")
        ids, positions = insert_tags(sampled, step_ends, tag)
        pairs = [(p, y) for p, y in zip(positions, labels, strict=True) if y is not None]
        if config.kind == "orm":
            pairs = pairs[-1:] if labels and labels[-1] is not None else []
        if not pairs:
            counts["unlabelled"] += 1
            continue
        read = np.array([p for p, _ in pairs], dtype=np.int64)
        if read[-1] + 1 > limit:
            counts["too_long"] += 1
            continue
        tokens = np.array(ids[: read[-1] + 1], dtype=np.int64)
        kept.append((problem_id, tokens, read, np.array([y for _, y in pairs], dtype=np.float32)))
        counts["rows"] += 1
    if not kept:
        raise UserError(_nothing_left(config, dataset.height, counts, limit))
    shared = _shared_prefixes([(problem, tokens) for problem, tokens, _, _ in kept])
    return RewardRows(
        rows=[Row(tokens, shared[problem], read) for problem, tokens, read, _ in kept],
        labels=[labels for *_, labels in kept],
        problem=[problem for problem, *_ in kept],
        together=1,
        counts=counts,
    )


def _nothing_left(config: RewardModelConfig, height: int, counts: dict[str, int], limit: int) -> str:
    if height == 0:
        return (
            f"there is no row to train the {config.kind} on: all solutions were left out when the rows were made; the "
            "counts of the artifact with the rows say why (grpo-pipeline inspect)"
        )
    return (
        f"no row to train the {config.kind} on is left of {height}: {counts['unlabelled']} without label, "
        f"{counts['too_long']} longer than {limit} tokens (reward_model.max_length and the model's context)"
    )


def pair_rows(pairs: pl.DataFrame, config: RewardModelConfig, context: int | None) -> RewardRows:
    """Rows of a pairwise model: chosen and rejected, judged at their last token.

    With beta_rm > 0 the states that predict the chosen response's tokens are read too, before the last one.

    Args:
        pairs: `preference_pairs` columns (or what `prm_dataset.build_pairs` gives), of training problems only.
        config: beta_rm and the longest row.
        context: The model's context; None for no limit.

    Raises:
        ValueError: A pair of an evaluation problem.
        UserError: If the frame holds no pairs.
    """
    if "split" in pairs.columns:
        require_training_rows(pairs)
    if "chosen_token_ids" not in pairs.columns:
        raise UserError("a pairwise reward model is trained on pairs: give it what prm_dataset.build_pairs returns")
    counts = {"rows": 0, "too_long": 0}
    limit = config.max_length if context is None else min(config.max_length, context)
    rows: list[Row] = []
    problem: list[str] = []
    columns = pairs.select("problem_id", "prompt_token_ids", "chosen_token_ids", "rejected_token_ids")
    for problem_id, prompt, *responses in columns.iter_rows():
        if len(prompt) + max(map(len, responses)) > limit:
            counts["too_long"] += 1
            continue
        for is_rejected, response in enumerate(responses):
            tokens = np.array([*prompt, *response], dtype=np.int64)
            last = len(tokens) - 1
            predicting = range(len(prompt) - 1, last) if config.beta_rm > 0 and not is_rejected else ()
            rows.append(Row(tokens, len(prompt), np.array([*predicting, last], dtype=np.int64)))
            problem.append(problem_id)
        counts["rows"] += 1
    if not rows:
        raise UserError(f"no pair to train the pairwise reward model on is left of {pairs.height} ({listed(counts)})")
    return RewardRows(rows, [], problem, 2, counts)


def epoch_batches(data: RewardRows, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Units of each optimizer step of an epoch: problems shuffled, the solutions of a problem side by side.

    Solutions of a problem share its prompt's tokens in a packed batch only if they are in the same batch.
    """
    rng = np.random.default_rng(derive_seed(seed, "reward_model", "epoch", epoch))
    members: dict[str, list[int]] = {}
    for unit in range(data.n_units):
        members.setdefault(data.problem[unit * data.together], []).append(unit)
    problems = sorted(members)
    order = [unit for p in rng.permutation(len(problems)) for unit in members[problems[p]]]
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _shared_prefixes(rows: Sequence[tuple[str, npt.NDArray[np.int64]]]) -> dict[str, int]:
    """Problem -> tokens that all its rows begin with; 0 for a problem with one row."""
    shared: dict[str, npt.NDArray[np.int64]] = {}
    seen: set[str] = set()
    for problem, tokens in rows:
        if problem not in shared:
            shared[problem] = tokens
            continue
        seen.add(problem)
        before = shared[problem]
        n = min(len(before), len(tokens))
        differs = np.flatnonzero(before[:n] != tokens[:n])
        shared[problem] = before[: differs[0] if len(differs) else n]
    return {problem: len(tokens) if problem in seen else 0 for problem, tokens in shared.items()}
