"""What a person asks for besides the loop: a data set, a model, or figures; each put together from stages."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.stages.ahead import check_ahead
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.loop import label_round, measure_policy
from grpo_pipeline.stages.rounds import Labelled, Measured
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef


def build_prm_dataset(stages: Stages, config: RunConfig) -> Labelled:
    """Label solutions of the starting policy, and make the rows that a PRM trains on."""
    problems = stages.make_problems(config)
    return label_round(stages, config, 0, problems, stages.base_policy(config), ())


def train_prm(stages: Stages, config: RunConfig) -> ModelRef:
    """Build the first round's data set, or take the given one, and train on it from the starting policy."""
    policy = stages.base_policy(config)
    if config.prm_dataset is not None:
        return stages.train_reward_model(config, 0, stages.open_dataset(config, policy), policy)
    problems = stages.make_problems(config)
    labelled = label_round(stages, config, 0, problems, policy, ())
    return stages.train_reward_model(config, 0, labelled.dataset, policy)


def train_policy(stages: Stages, config: RunConfig) -> ModelRef:
    """Train the starting policy once; a reward model is made first where the method asks for one."""
    check_ahead(config)
    reward_model = train_prm(stages, config) if needs_reward_model(config.policy) else None
    problems = stages.make_problems(config)
    return stages.train_policy(config, 1, problems, stages.base_policy(config), reward_model)


def evaluate(stages: Stages, config: RunConfig) -> Measured:
    """Measure the configured model on the held-out problems."""
    return measure_policy(stages, config, 0, stages.make_problems(config), stages.base_policy(config))


def evaluate_prm(stages: Stages, config: RunConfig) -> ArtifactRef:
    """Score every labelled file and every set of rollouts, and measure them together."""
    prm = stages.open_prm(config)
    solutions = [stages.import_labelled(config, entry) for entry in config.prm_evaluation.files]
    solutions += [open_rollouts(folder) for folder in config.prm_evaluation.rollouts]
    few_shot = config.prm_evaluation.form == "own" and config.prompt.examples > 0
    problems = stages.make_problems(config) if few_shot else None
    scored = tuple((ref, stages.score_labelled(config, ref, prm, problems)) for ref in solutions)
    return stages.evaluate_labelled(config, prm, scored)


def open_rollouts(folder: str) -> ArtifactRef:
    """An artifact with checked rollouts."""
    from grpo_pipeline.inspect.opening import open_artifact

    ref = open_artifact(folder)
    if "steps" not in ref.tables:
        raise UserError(f"{folder}: prm_evaluation.rollouts needs artifacts with steps, such as evaluate_rollouts")
    return ref
