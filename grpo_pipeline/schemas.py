"""The tables: one pyarrow schema each, with a description of every field.

Column names stand here once and hold everywhere. Lists are Arrow lists of the narrowest type (int32 token
ids, float32 log-probabilities); large_list and large_string are avoided, since `datasets` cannot align them.
`TABLES[name].schema` is what a shard of that table has on disk, in this order.
"""

from dataclasses import dataclass, field

import pyarrow as pa

SCHEMA_VERSION = 1
"""Raised when a table changes in a way that a reader must know of."""

# Elements are not null, but for step labels, where a null element is an unlabelled step.
TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
FLOATS = pa.list_(pa.field("element", pa.float32(), nullable=False))
LABELS = pa.list_(pa.field("element", pa.float32()))
TEXTS = pa.list_(pa.field("element", pa.string(), nullable=False))
EXACT_LABELS = pa.list_(pa.field("element", pa.float64()))

LABEL_SOURCES = ("sampled", "implied", "outcome", "unlabelled")


@dataclass(frozen=True)
class TableSchema:
    """A table's name, key, sort order and pyarrow schema.

    Attributes:
        name: The table's name, as in paths and in `tables.scan`.
        description: What one row is.
        key: Columns that together are unique.
        schema: Columns in order; each field carries its description in its metadata.
        open_columns: Prefix -> type of further columns that a writer may add (metrics, reward parts);
            the empty prefix allows any name.
    """

    name: str
    description: str
    key: tuple[str, ...]
    schema: pa.Schema
    open_columns: dict[str, pa.DataType] = field(default_factory=dict)

    def describe(self) -> dict[str, str]:
        """Column name -> description."""
        return {f.name: f.metadata[b"description"].decode() for f in self.schema}


def _table(
    name: str,
    description: str,
    key: tuple[str, ...],
    columns: list[tuple[str, pa.DataType, str]],
    open_columns: dict[str, pa.DataType] | None = None,
) -> TableSchema:
    # A trailing "?" in the column name marks the column as nullable.
    fields = [
        pa.field(column.rstrip("?"), kind, nullable=column.endswith("?"), metadata={"description": text})
        for column, kind, text in columns
    ]
    return TableSchema(name, description, key, pa.schema(fields), open_columns or {})


_STRING, _INT32, _INT64, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.bool_()
_F32, _F64 = pa.float32(), pa.float64()

_PROBLEM_ID = ("problem_id", _STRING, "the problem: a hash of its question and gold answer")
_ROLLOUT_ID = ("rollout_id", _STRING, "the rollout (one sampled solution)")
_ROUND = ("round", _INT32, "RL round that made the row; 0 is before any RL")
_STEP_INDEX = ("step_index", _INT32, "0-based position of the step in its solution")

_ALL = [
    _table(
        "problems",
        "One problem with its gold answer.",
        ("problem_id",),
        [
            _PROBLEM_ID,
            ("source", _STRING, "where it comes from: a data set's name, or synthetic"),
            ("split", _STRING, "train or eval; a problem is in one split only"),
            ("question", _STRING, "the question as the model is asked it, without template"),
            ("gold_answer", _STRING, "the right final answer"),
            ("gold_solution?", _STRING, "a worked solution, null if none is known"),
            (
                "meta?",
                _STRING,
                "JSON with whatever else the source says; for generated problems the exact state",
            ),
        ],
    ),
    _table(
        "rollouts",
        "One sampled solution, with the very tokens that were sampled.",
        ("rollout_id",),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _ROUND,
            ("step?", _INT32, "exploration step of the training run that sampled it; null outside training"),
            ("group_index", _INT32, "0-based index in the group of rollouts of the same problem"),
            ("policy_id", _STRING, "the policy version that sampled it"),
            ("prompt_token_ids", TOKENS, "the prompt as the model saw it"),
            ("token_ids", TOKENS, "the sampled response tokens, EOS included where it was sampled"),
            ("logprobs", FLOATS, "log-probability of each sampled token, at the sampling temperature"),
            ("text", _STRING, "the response's text, without special tokens"),
            ("finish_reason", _STRING, "stop (EOS or stop string) or length (cut off)"),
            ("temperature", _F32, "sampling temperature; 0 is greedy"),
            ("top_p", _F32, "nucleus mass in (0, 1]"),
            ("seed", _INT64, "seed of this one sample"),
        ],
    ),
    _table(
        "checked",
        "The checker's verdict on one rollout.",
        ("rollout_id",),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            ("answer?", _STRING, "the extracted final answer, null if there is none"),
            ("verdict", _STRING, "correct, wrong, no_answer or timeout; timeout is undecided, not wrong"),
            ("reason", _STRING, "the checker's reason code"),
            ("checker_version", _STRING, "version of the checking rules"),
        ],
    ),
    _table(
        "steps",
        "One step of a rollout; joining the texts in order gives the rollout's text back, byte for byte.",
        ("rollout_id", "step_index"),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _STEP_INDEX,
            ("text", _STRING, "the step's text, its separator included"),
            ("char_start", _INT32, "first character in the rollout's text"),
            ("char_end", _INT32, "one past the last character"),
            ("token_end", _INT32, "inclusive index into token_ids of the token that ends the step"),
            ("is_last", _BOOL, "whether it is the solution's last step"),
            ("prefix_hash", _STRING, "hash of the prompt's and the solution's tokens up to token_end"),
        ],
    ),
    _table(
        "completions",
        "One continuation that a completer sampled from a prefix.",
        ("completion_id",),
        [
            ("completion_id", _STRING, "hash of completer, prefix, sampling parameters and index"),
            ("rollout_id", _STRING, "the rollout whose prefix it was first sampled for"),
            _PROBLEM_ID,
            _STEP_INDEX,
            ("prefix_hash", _STRING, "the prefix it continues; rollouts with the same prefix share it"),
            ("completion_index", _INT32, "0-based index among the prefix's completions"),
            ("completer_id", _STRING, "the model that sampled it"),
            ("n_tokens", _INT32, "sampled tokens"),
            ("text", _STRING, "the continuation's text"),
            ("finish_reason", _STRING, "stop or length"),
            ("answer?", _STRING, "the extracted final answer, null if there is none"),
            ("verdict", _STRING, "correct, wrong, no_answer or timeout"),
            ("seed", _INT64, "seed of this one sample"),
        ],
    ),
    _table(
        "step_labels",
        "The evidence for one step and the labels that follow from it (Math-Shepherd, arXiv 2312.08935).",
        ("rollout_id", "step_index"),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _STEP_INDEX,
            (
                "n_completions",
                _INT32,
                "completions that count towards the label; 0 for implied and outcome labels",
            ),
            ("n_correct", _INT32, "completions that reached the gold answer"),
            ("n_wrong", _INT32, "completions that reached another answer"),
            ("n_no_answer", _INT32, "finished completions without an answer"),
            ("n_truncated", _INT32, "completions cut off by the length limit: undecided"),
            ("n_timeout", _INT32, "completions whose check ran out of time: undecided"),
            ("soft?", _F32, "soft label in [0, 1]; null where the step is unlabelled"),
            ("hard?", _INT32, "hard label, 0 or 1; null where the step is unlabelled"),
            ("ci_low?", _F32, "lower end of the 95% Wilson interval of the soft label"),
            ("ci_high?", _F32, "upper end of the 95% Wilson interval of the soft label"),
            (
                "label_source",
                _STRING,
                "sampled, implied (follows from other steps), outcome (the solution's verdict) or unlabelled",
            ),
            (
                "second_opinion?",
                _INT32,
                "rule consensus: the hard label of another completer or of a judge; null where there is none",
            ),
        ],
    ),
    _table(
        "judgements",
        "A judge's opinion of one step; the solutions that it has none of are left out.",
        ("rollout_id", "step_index"),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _STEP_INDEX,
            ("hard?", _INT32, "1 before the first bad step, 0 at it, null after it"),
            ("n_votes", _INT32, "the judge's answers that could be read"),
            ("n_agree", _INT32, "of these, the ones with this first bad step"),
            ("judge_id", _STRING, "the model that judged"),
        ],
    ),
    _table(
        "prm_dataset",
        "One solution ready for PRM training: token ids, label positions and labels.",
        ("rollout_id",),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _ROUND,
            ("split", _STRING, "train or eval, as the problem's"),
            ("input_ids", TOKENS, "prompt and response tokens"),
            ("step_positions", TOKENS, "index into input_ids of each step's last token"),
            ("soft", LABELS, "soft label of each step; a null element is an unlabelled step"),
            ("hard", LABELS, "hard label of each step, 0 or 1; a null element is an unlabelled step"),
            ("is_replay", _BOOL, "whether the row was drawn from an earlier round"),
        ],
    ),
    _table(
        "step_scores",
        "A reward model's score of one step.",
        ("rollout_id", "step_index"),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            _STEP_INDEX,
            ("score", _F32, "p(step good) = sigmoid(logit), in [0, 1]"),
            ("prm_id", _STRING, "the reward model that gave it"),
        ],
    ),
    _table(
        "solution_scores",
        "An outcome or pairwise reward model's score of one whole solution.",
        ("rollout_id",),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            ("score", _F32, "an ORM's p(correct) in [0, 1]; a pairwise model's reward, of any size"),
            ("reward_model_id", _STRING, "the reward model that gave it"),
        ],
    ),
    _table(
        "preference_pairs",
        "A correct and a wrong solution of one problem, ready for pairwise reward-model training.",
        ("pair_id",),
        [
            ("pair_id", _STRING, "the pair: a hash of both rollout ids"),
            _PROBLEM_ID,
            _ROUND,
            ("split", _STRING, "train or eval, as the problem's"),
            ("chosen_id", _STRING, "rollout_id of the correct solution"),
            ("rejected_id", _STRING, "rollout_id of the wrong one"),
            ("prompt_token_ids", TOKENS, "the prompt as the model saw it"),
            ("chosen_token_ids", TOKENS, "the correct response's sampled tokens, without EOS"),
            ("rejected_token_ids", TOKENS, "the wrong response's sampled tokens, without EOS"),
            ("is_replay", _BOOL, "whether the row was drawn from an earlier round"),
        ],
    ),
    _table(
        "advantages",
        "Rewards and advantages of one rollout, as they went into the update.",
        ("rollout_id",),
        [
            _ROLLOUT_ID,
            _PROBLEM_ID,
            ("step?", _INT32, "exploration step of the training run"),
            ("outcome_reward?", _F32, "the solution's weighted reward; null if it could not be decided"),
            ("step_rewards?", FLOATS, "reward of each step under process supervision, else null"),
            (
                "step_advantages",
                FLOATS,
                "advantage of the tokens of each step (one element under outcome supervision)",
            ),
        ],
        {"reward_": _F32},
    ),
    _table(
        "metrics",
        "What the trainer measured at one optimizer step; further columns are named as TRL names them.",
        ("step",),
        [("step", _INT32, "optimizer step, from 1"), _ROUND, ("stage", _STRING, "the training stage")],
        {"": _F64},
    ),
    _table(
        "evaluations",
        "One measured figure of a policy or of a reward model.",
        ("subject", "metric"),
        [
            _ROUND,
            ("subject", _STRING, "policy, prm, orm, pairwise or labels"),
            ("subject_id", _STRING, "the model that was measured; for labels the completer"),
            ("metric", _STRING, "accuracy, greedy, maj8, pass8, bon8, step_accuracy, auc, ..."),
            ("value?", _F64, "the figure; null where it is undefined (an AUC with one class)"),
            ("standard_error?", _F64, "its standard error over problems, null where none is given"),
            ("n", _INT64, "number of problems or steps behind it"),
        ],
    ),
    _table(
        "problem_figures",
        "One figure of a policy on one held-out problem.",
        ("policy_id", "problem_id", "metric"),
        [
            ("policy_id", _STRING, "the policy that was measured"),
            _PROBLEM_ID,
            ("metric", _STRING, "accuracy, greedy, maj8, pass8, mean_tokens, kl, ..."),
            ("value", _F64, "the figure"),
        ],
    ),
    _table(
        "comparison",
        "One figure of a variant over all seeds of a comparison, or its difference to another variant's.",
        ("variant", "against", "metric"),
        [
            ("variant", _STRING, "the way of training; NAME@R is its policy after round R"),
            ("against", _STRING, "the variant whose figure is subtracted, problem by problem; empty for none"),
            ("metric", _STRING, "accuracy, maj8, pass8, kl, policy_tokens, label_tokens, ..."),
            ("value", _F64, "the mean over seeds of the mean over problems"),
            ("standard_error_seeds?", _F64, "standard error over the seeds' means; null for one seed"),
            (
                "standard_error_problems?",
                _F64,
                "standard error over problems with the trained policies as they are; null for costs",
            ),
            ("n_seeds", _INT32, "seeds behind it"),
            ("n_problems", _INT64, "problems behind it, all seeds together; 0 for costs"),
        ],
    ),
    _table(
        "comparison_steps",
        "A training metric of a variant at one exploration step, over all seeds of a comparison.",
        ("variant", "step", "metric"),
        [
            ("variant", _STRING, "the way of training"),
            ("step", _INT32, "exploration step from 1, counted on over the rounds"),
            ("metric", _STRING, "reward, accuracy, kl, completions/mean_length, ... as in metrics"),
            ("value", _F64, "the mean over seeds"),
            ("standard_error_seeds?", _F64, "its standard error over seeds; null for one seed"),
            ("n_seeds", _INT32, "seeds behind it"),
        ],
    ),
    _table(
        "solutions",
        "One solution from a file of others, with the labels of its steps (`exchange.records.StepRecord`).",
        ("solution_id",),
        [
            ("solution_id", _STRING, "the record: a hash of the file's form, its content and its place"),
            _PROBLEM_ID,
            ("place", _INT64, "0-based place among the records of its file"),
            ("form", _STRING, "the form of the file"),
            ("question", _STRING, "the question"),
            ("gold_answer?", _STRING, "the right final answer, null where the file does not tell"),
            ("final_answer?", _STRING, "the solution's own final answer, null where the file does not tell"),
            ("steps", TEXTS, "the steps' texts, without separators"),
            ("labels", EXACT_LABELS, "label of each step in [0, 1]; a null element is a step that was not judged"),
            ("extra", _STRING, "JSON with what else the form says, so that the file can be written back"),
        ],
    ),
    _table(
        "pairs",
        "One preference pair from a file of others (`exchange.records.PairRecord`).",
        ("place",),
        [
            ("place", _INT64, "0-based place in its file"),
            ("prompt", _STRING, "JSON: a text, or a list of turns"),
            ("chosen", _STRING, "JSON: the preferred response, a text or a list of turns"),
            ("rejected", _STRING, "JSON: the other response"),
            ("extra", _STRING, "JSON with the file's further columns"),
        ],
    ),
]

TABLES: dict[str, TableSchema] = {table.name: table for table in _ALL}
