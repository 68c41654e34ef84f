"""The configuration of a run: pydantic models, read from TOML, with overrides by dotted key.

Every section is also a parameter form in Prefect's UI, so each field carries its description and its limits.
Unknown keys, wrong types and impossible values are refused before anything starts (`load_config`).
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from grpo_pipeline.errors import UserError

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
DecayRate = Annotated[float, Field(ge=0, lt=1)]

EMBEDDED = "embedded"
"""Name of the tiny model that ships with the project (data/tiny)."""


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelConfig(Section):
    """The policy to start from."""

    path: str = Field(EMBEDDED, description="Local model folder, Hugging Face id, or 'embedded' for data/tiny.")
    revision: str | None = Field(None, description="Revision of a Hugging Face id; a commit makes runs repeatable.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Weights' type; auto is bfloat16 on a GPU that has it, else float32."
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    trust_remote_code: bool = Field(False, description="Run code that the model folder brings. Leave it off.")


class ProblemsConfig(Section):
    """Where problems come from and how they are split."""

    source: str = Field(
        "synthetic",
        description="'synthetic' (generated), a .parquet/.jsonl/.json file, a folder, or a Hugging Face data set id "
        "(id:configuration where it has several).",
    )
    reader: Literal["auto", "gsm8k", "math500", "svamp", "columns"] = Field(
        "auto", description="Form of the records; auto looks at the first record's columns."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="For reader 'columns': our name -> the source's column (question, gold_answer, gold_solution).",
    )
    hub_split: str = Field("train", description="Split of a Hugging Face data set.")
    count: PositiveInt | None = Field(
        None, description="Problems at most for training; required for synthetic, null takes all of a file."
    )
    eval_source: str | None = Field(
        None, description="Source of evaluation problems; null splits them off the training source."
    )
    eval_count: PositiveInt = Field(200, description="Held-out evaluation problems.")
    seed: NonNegativeInt = Field(0, description="Seed of generation and of the split.")
    min_steps: PositiveInt = Field(2, description="Synthetic: operations of the shortest problem.")
    max_steps: PositiveInt = Field(4, description="Synthetic: operations of the longest problem.")
    decontaminate: bool = Field(
        True, description="Drop training problems whose normalised text matches an evaluation problem."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps ({self.min_steps}) is above max_steps ({self.max_steps})")
        if self.source == "synthetic" and self.count is None:
            raise ValueError("count is required for source 'synthetic': say how many training problems to make")
        return self


class PromptConfig(Section):
    """How a question becomes a prompt."""

    template: str = Field("{question}\n", description="Text around one question; {question} stands for it.")
    examples: NonNegativeInt = Field(
        0, description="Worked examples from the training split put before the question (few-shot)."
    )
    chat: bool = Field(False, description="Wrap the prompt with the tokenizer's chat template.")
    system: str | None = Field(None, description="System message, with chat.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.template.count("{question}") != 1:
            raise ValueError(f"template must hold {{question}} exactly once, not: {self.template!r}")
        if self.system is not None and not self.chat:
            raise ValueError("system needs chat = true")
        return self


class SamplingConfig(Section):
    """How responses are sampled."""

    temperature: NonNegativeFloat = Field(1.0, description="Divides the logits; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Nucleus mass; 1 keeps everything.")
    max_tokens: PositiveInt = Field(256, description="Response tokens at most.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Strings that end a response, besides EOS."
    )


class EngineConfig(Section):
    """What generates text."""

    kind: Literal["transformers", "vllm", "server"] = Field("transformers", description="The engine.")
    max_batch: PositiveInt = Field(256, description="Sequences decoded at once (transformers, vllm).")
    decode: Literal["fast", "plain"] = Field(
        "fast",
        description="transformers: our continuous batching decode, or the plain loop it is tested against.",
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="vllm: share of the device's memory that it may take."
    )
    tensor_parallel_size: PositiveInt = Field(1, description="vllm: GPUs that one model is spread over.")
    max_model_len: PositiveInt | None = Field(None, description="Context limit; null takes the model's.")
    base_url: str | None = Field(None, description="server: address of an OpenAI-compatible server's /v1.")
    concurrency: PositiveInt = Field(64, description="server: requests under way at once.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "server" and not self.base_url:
            raise ValueError("engine.kind = 'server' needs base_url, e.g. http://127.0.0.1:8000/v1")
        return self


class LabellingConfig(Section):
    """Math-Shepherd step labels: how many solutions, completions, and which rule."""

    problems: PositiveInt = Field(128, description="Problems whose solutions are labelled in a round.")
    rollouts: PositiveInt = Field(4, description="Solutions sampled for each of them.")
    completions: PositiveInt = Field(8, description="N, completions from each prefix.")
    schedule: Literal["brute", "first_error", "closure", "binary", "soft_adaptive"] = Field(
        "brute", description="Which prefixes are completed, and how often; brute is N for every step."
    )
    wave: PositiveInt = Field(2, description="Completions sampled at once from a prefix by the adaptive schedules.")
    interval_width: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="soft_adaptive: stop when the 95% interval is narrower."
    )
    after_first_error: Literal["unlabelled", "zero"] = Field(
        "unlabelled", description="first_error and binary: the label of steps after the first bad one."
    )
    skip_correct: bool = Field(
        False,
        description="Imply all steps of a correct solution; loses flawed-but-lucky ones, wrong for soft labels.",
    )
    splitter: str = Field(
        "line",
        description="Where steps end: line, paragraph, or a user's 'module:function' (docs/extend.md).",
    )
    truncated: Literal["not_correct", "exclude"] = Field(
        "not_correct",
        description="A completion cut off by the length limit: counts in N as not correct (as in the paper), or not.",
    )
    max_tokens: PositiveInt | None = Field(
        None, description="Tokens of a completion at most; null takes sampling.max_tokens less the prefix's."
    )
    completer: ModelConfig | None = Field(None, description="Another model as completer; null is the policy itself.")


class OptimizerConfig(Section):
    """One optimizer's settings (AdamW)."""

    lr: PositiveFloat = Field(description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After warm-up.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps of linear warm-up.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decoupled weight decay.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), description="Adam's moment decay rates, below 1.")
    max_grad_norm: PositiveFloat | None = Field(1.0, description="Gradient norm above which it is clipped.")


class LoraConfig(Section):
    """Low-rank adapters instead of full weights (peft)."""

    rank: PositiveInt = Field(16, description="Rank of the adapters.")
    alpha: PositiveFloat = Field(32.0, description="Scale; the update is multiplied by alpha / rank.")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field("all-linear", description="Adapted layers.")


class TrainingConfig(Section):
    """What every trainer shares."""

    tokens_per_microbatch: PositiveInt = Field(
        16384, description="Token budget of one forward and backward; halved on out-of-memory."
    )
    packing: bool = Field(True, description="Padding-free batches; off is the plain padded path.")
    checkpoint_every: NonNegativeInt = Field(10, description="Optimizer steps between checkpoints; 0 for none.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass.")
    lora: LoraConfig | None = Field(None, description="Train adapters instead of all weights.")


class RewardModelConfig(Section):
    """Training of the reward model (METHOD: RM learning rate 2e-5)."""

    kind: Literal["prm", "orm", "pairwise"] = Field("prm", description="Step-level, outcome-level or Bradley-Terry.")
    label: Literal["soft", "hard"] = Field("soft", description="Target of the binary cross-entropy.")
    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig(lr=2e-5))
    epochs: PositiveInt = Field(2, description="Passes over the data.")
    batch_size: PositiveInt = Field(64, description="Solutions an optimizer step.")
    max_length: PositiveInt = Field(2048, description="Tokens of the longest row; longer ones are dropped, counted.")
    aggregate: Literal["min", "prod", "last", "mean"] = Field("min", description="Solution score from step scores.")
    beta_rm: NonNegativeFloat = Field(0.0, description="pairwise: weight of the language-model loss on the chosen.")


class RewardConfig(Section):
    """The reward of a rollout: weighted parts, each its own column."""

    rule_weight: NonNegativeFloat = Field(1.0, description="Weight of the checker's verdict (1 correct, 0 otherwise).")
    model_weight: NonNegativeFloat = Field(
        0.0, description="Weight of the reward model's solution score in the outcome reward."
    )
    format_weight: NonNegativeFloat = Field(0.0, description="Weight of the format reward (1 if an answer is stated).")
    length_weight: NonNegativeFloat = Field(
        0.0,
        description="Weight of the length penalty, 0 up to length_target, then falling to -1 at max_tokens.",
    )
    length_target: PositiveInt = Field(192, description="Tokens up to which length costs nothing.")
    custom: dict[str, NonNegativeFloat] = Field(
        default_factory=dict, description="User rewards: 'module:function' -> weight (docs/extend.md)."
    )
    truncated: Literal["zero", "null"] = Field(
        "zero", description="Rule reward of a cut-off response: 0, or null (left out of the group)."
    )


class GrpoConfig(Section):
    """GRPO's own settings (Shao et al. 2024; METHOD 3 and 4)."""

    supervision: Literal["outcome", "process"] = Field("process", description="Outcome or process supervision.")
    beta: NonNegativeFloat = Field(0.04, description="Weight of the KL to the reference; 0 loads no reference.")
    unbiased_kl: bool = Field(
        False,
        description="Multiply the KL by the ratio, for the unbiased gradient of the reverse KL (TRL's default); "
        "off is the paper's.",
    )
    epsilon: PositiveFloat = Field(0.2, description="Clip range of the ratio.")
    epsilon_high: PositiveFloat | None = Field(None, description="Upper clip range; null is epsilon (clip-higher).")
    loss_type: Literal["grpo", "bnpo", "dapo", "dr_grpo"] = Field("grpo", description="How token losses are averaged.")
    scale_rewards: bool = Field(True, description="Divide by the group's standard deviation.")
    advantage_eps: NonNegativeFloat = Field(1e-4, description="Added to the standard deviation, as in TRL.")
    step_mean: bool = Field(False, description="Process supervision: mean instead of sum over the steps to come.")
    outcome_weight: NonNegativeFloat = Field(
        0.0, description="Process supervision: weight of the outcome advantage added to the steps'."
    )
    ratio: Literal["token", "sequence"] = Field("token", description="Importance ratio per token, or GSPO's sequence.")
    mask_truncated: bool = Field(False, description="Leave cut-off rollouts out of the loss.")
    importance_correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="Correction of sampler vs trainer log-probabilities, by truncated or masked weights.",
    )
    importance_cap: PositiveFloat = Field(2.0, description="Largest sampler-to-trainer weight.")


class PpoConfig(Section):
    """PPO's own settings."""

    epsilon: PositiveFloat = Field(0.2, description="Clip range of the ratio.")
    value_epsilon: PositiveFloat | None = Field(0.2, description="Clip range of the value; null for none.")
    gamma: Fraction = Field(1.0, description="Discount.")
    lam: Fraction = Field(0.95, description="GAE's lambda.")
    kl_coef: NonNegativeFloat = Field(0.04, description="eta: weight of the per-token KL in the reward.")
    kl_target: PositiveFloat | None = Field(
        None, description="Target of the KL summed over a response (nats), for the adaptive coefficient; null is fixed."
    )
    kl_horizon: PositiveInt = Field(10_000, description="Horizon of the adaptive coefficient, in rollouts.")
    value_weight: PositiveFloat = Field(0.5, description="Weight of the critic's loss.")
    critic_lr: PositiveFloat = Field(1e-5, description="Learning rate of the critic.")
    critic_warmup: NonNegativeInt = Field(0, description="Exploration steps that train the critic alone.")
    normalise_rewards: bool = Field(
        True, description="Subtract the rewards' running mean and divide by their running standard deviation."
    )
    reward_clip: PositiveFloat | None = Field(5.0, description="Clip of the normalised reward; null for none.")
    ptx_weight: NonNegativeFloat = Field(0.0, description="lambda_ptx: weight of the demonstrations' likelihood.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("kl_target needs kl_coef > 0: the adaptive coefficient is multiplied up from it")
        return self


class DpoConfig(Section):
    """DPO's own settings."""

    beta: PositiveFloat = Field(0.1, description="Strength of the implicit KL.")
    length_normalised: bool = Field(False, description="Mean instead of sum of token log-ratios.")
    pairs_per_problem: PositiveInt = Field(4, description="Preference pairs at most for each problem.")


MethodName = Literal["sft", "rft", "online_rft", "dpo", "ppo", "grpo"]


class PolicyConfig(Section):
    """Training of the policy: one loop, six methods (METHOD 5)."""

    method: MethodName = Field("grpo", description="Which of the six methods.")
    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig(lr=1e-6))
    steps: PositiveInt = Field(30, description="Exploration steps (online methods) or optimizer steps (offline).")
    problems_per_step: PositiveInt = Field(16, description="Problems in an exploration step.")
    rollouts_per_problem: Annotated[int, Field(ge=1)] = Field(64, description="G, rollouts of each problem.")
    updates_per_step: PositiveInt = Field(1, description="mu, optimizer steps on each exploration step's rollouts.")
    epochs: PositiveInt = Field(1, description="Offline methods: passes over the data.")
    kl_limit: PositiveFloat | None = Field(
        None, description="Online methods: stop when the KL to the reference exceeds it."
    )
    grpo: GrpoConfig = Field(default_factory=GrpoConfig)
    ppo: PpoConfig = Field(default_factory=PpoConfig)
    dpo: DpoConfig = Field(default_factory=DpoConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.method == "grpo" and self.rollouts_per_problem < 2:
            raise ValueError(
                "rollouts_per_problem must be at least 2 for grpo: a group of one rollout has no advantage"
            )
        return self


class ReplayConfig(Section):
    """Rows of earlier rounds in the refreshed reward-model set (METHOD 6)."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="Share of historical rows in the refreshed training set."
    )


class EvaluationConfig(Section):
    """What is measured on held-out problems."""

    samples: PositiveInt = Field(8, description="Rollouts of each problem; k of maj@k, pass@k and best-of-k.")
    temperature: NonNegativeFloat = Field(1.0, description="Temperature of those rollouts.")


class PrmEvaluationConfig(Section):
    """What `evaluate-prm` measures: any process reward model on files of others and on sampled solutions."""

    model: str | None = Field(None, description="Folder of the reward model; must be set for evaluate-prm.")
    form: Literal["own", "trl", "math-shepherd", "rlhflow", "qwen"] = Field(
        "own",
        description="How the model reads a solution: own, trl (token classifier), math-shepherd or rlhflow (a language "
        "model that says + or -), qwen (Qwen2.5-Math-PRM).",
    )
    files: tuple[str, ...] = Field((), description="Labelled files, each FORM:PATH, such as processbench:gsm8k.json.")
    rollouts: tuple[str, ...] = Field(
        (), description="Artifact folders with sampled, checked solutions (stage evaluate_rollouts): best-of-n, votes."
    )
    threshold: Fraction = Field(0.5, description="A step with a lower score is called wrong.")
    tune_on: str | None = Field(
        None, description="File (its name without suffix) on which another threshold is chosen; the others use it too."
    )
    neutral: Literal["good", "bad", "unlabelled"] = Field(
        "good", description="What PRM800K's neutral ratings count as."
    )


class StoreConfig(Section):
    """How artifacts are written."""

    rows_per_group: PositiveInt = Field(16384, description="Rows of a Parquet row group.")
    problems_per_shard: PositiveInt = Field(64, description="Problems in one shard, the unit that a restart keeps.")


class RunConfig(Section):
    """A whole run."""

    name: str = Field("quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Folder of the run.")
    root: str = Field("runs", description="Where runs are stored: a folder or an fsspec URL.")
    seed: NonNegativeInt = Field(0, description="Seed that every other seed is derived from.")
    rounds: NonNegativeInt = Field(2, description="RL rounds (I in Algorithm 1); 0 only builds the first PRM.")
    model: ModelConfig = Field(default_factory=ModelConfig)
    problems: ProblemsConfig = Field(default_factory=lambda: ProblemsConfig(count=1024))
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    labelling: LabellingConfig = Field(default_factory=LabellingConfig)
    reward_model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    prm_dataset: str | None = Field(
        None,
        description="For train-prm: folder of an artifact with rows to train on, such as an imported one; left out, "
        "solutions of the starting policy are sampled and labelled.",
    )
    prm_evaluation: PrmEvaluationConfig = Field(default_factory=PrmEvaluationConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)

    @model_validator(mode="after")
    def _check(self) -> Self:
        hard_only = self.labelling.schedule not in ("brute", "soft_adaptive") or self.labelling.skip_correct
        if self.reward_model.label == "soft" and hard_only:
            raise ValueError(
                "reward_model.label = 'soft' needs labelling.schedule 'brute' or 'soft_adaptive' without skip_correct: "
                "other schedules stop at the first success and give hard labels only; set reward_model.label = 'hard'"
            )
        if self.reward_model.kind == "pairwise":
            raise ValueError(
                "reward_model.kind = 'pairwise' is trained on preference pairs, which no flow makes; use prm or orm, "
                "or call training.reward_model.train_reward_model with prm_dataset.build_pairs"
            )
        reward = self.policy.reward
        if reward.length_weight > 0 and reward.length_target >= self.sampling.max_tokens:
            raise ValueError(
                f"policy.reward.length_target = {reward.length_target} is not below sampling.max_tokens = "
                f"{self.sampling.max_tokens}, so no response would be penalised; lower it, or set length_weight = 0"
            )
        process = self.policy.method == "grpo" and self.policy.grpo.supervision == "process"
        if process and self.reward_model.kind != "prm":
            raise ValueError(
                f"reward_model.kind = {self.reward_model.kind!r} scores whole solutions, and policy.grpo.supervision = "
                "'process' needs step scores; set policy.grpo.supervision = 'outcome' with policy.reward.model_weight"
            )
        return self


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a TOML file and apply ``a.b=value`` overrides.

    Args:
        path: The file; None starts from the defaults.
        overrides: Each ``dotted.key=value``; the value is read as TOML where it is valid TOML, else as text.

    Raises:
        UserError: For a missing or broken file, an unknown key, a wrong type or an impossible value; the
            message names the key and what is allowed.
    """
    data: dict[str, Any] = {}
    where = "the overrides"
    if path is not None:
        where = str(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such configuration file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not valid TOML: {error}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    for override in overrides:
        _apply_override(data, override)
    return parse_config(data, where)


def parse_config(data: Mapping[str, Any], where: str) -> RunConfig:
    """Validate a nested mapping; raises UserError listing every problem by key."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise UserError(_explain(error, where)) from None


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: expected KEY=VALUE with a dotted key, e.g. policy.optimizer.lr=1e-5")
    *parents, last = key.strip().split(".")
    node = data
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {override}: {parent} is a value, not a section")
        node = child
    node[last] = _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return {"null": None, "none": None}.get(text.lower(), text)


def _explain(error: ValidationError, where: str) -> str:
    lines = [f"{where}: {error.error_count()} problem(s) in the configuration:"]
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "(whole configuration)"
        if item["type"] == "extra_forbidden":
            lines.append(f"  {key}: unknown key; allowed here: {', '.join(_allowed_keys(item['loc'][:-1]))}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = "" if isinstance(item["input"], dict | BaseModel) else f" (got {item['input']!r})"
            lines.append(f"  {key}: {message}{given}")
    return "\n".join(lines)


def _allowed_keys(path: tuple[int | str, ...]) -> list[str]:
    schema = TypeAdapter(RunConfig).json_schema()
    node: dict[str, Any] = schema
    for part in path:
        node = _resolve(node.get("properties", {}).get(str(part), {}), schema)
    return sorted(node.get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", []), *node.get("allOf", [])):
        if "$ref" in option:
            name = option["$ref"].rsplit("/", 1)[-1]
            found: dict[str, Any] = schema["$defs"][name]
            return found
    return node
