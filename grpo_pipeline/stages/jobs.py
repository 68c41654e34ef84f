"""What a person asks for besides the loop: a data set, a model, or figures; each put together from stages."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.stages.ahead import check_ahead
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.inputs import asks_as_prompt, check_inputs, find_rollouts
from grpo_pipeline.stages.loop import label_round, measure_policy
from grpo_pipeline.stages.rounds import Labelled, Measured
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef


def build_prm_dataset(stages: Stages, config: RunConfig) -> Labelled:
    """Label solutions of the starting policy, and make the rows that a PRM trains on."""
    check_inputs(config, "build-prm-dataset")
    problems = stages.make_problems(config)
    return label_round(stages, config, 0, problems, stages.base_policy(config), ())


def train_prm(stages: Stages, config: RunConfig) -> ModelRef:
    """Build the first round's data set, or take the given one, and train on it from the starting policy."""
    check_inputs(config, "train-prm")
    policy = stages.base_policy(config)
    if config.prm_dataset is not None:
        return stages.train_reward_model(config, 0, stages.open_dataset(config, policy), policy)
    problems = stages.make_problems(config)
    labelled = label_round(stages, config, 0, problems, policy, ())
    return stages.train_reward_model(config, 0, labelled.dataset, policy)


def train_policy(stages: Stages, config: RunConfig) -> ModelRef:
    """Train the starting policy once; a reward model is made first where the method asks for one."""
    check_inputs(config, "train-policy")
    check_ahead(config)
    reward_model = train_prm(stages, config) if needs_reward_model(config.policy) else None
    problems = stages.make_problems(config)
    return stages.train_policy(config, 1, problems, stages.base_policy(config), reward_model)


def evaluate(stages: Stages, config: RunConfig) -> Measured:
    """Measure the configured model on the held-out problems."""
    check_inputs(config, "evaluate")
    return measure_policy(stages, config, 0, stages.make_problems(config), stages.base_policy(config))


def evaluate_prm(stages: Stages, config: RunConfig) -> ArtifactRef:
    """Score every labelled file and every set of rollouts, and measure them together."""
    check_inputs(config, "evaluate-prm")
    prm = stages.open_prm(config)
    solutions = [stages.import_labelled(config, entry) for entry in config.prm_evaluation.files]
    solutions += [find_rollouts(folder) for folder in config.prm_evaluation.rollouts]
    problems = stages.make_problems(config) if asks_as_prompt(config) else None
    scored = tuple((ref, stages.score_labelled(config, ref, prm, problems)) for ref in solutions)
    return stages.evaluate_labelled(config, prm, scored)
