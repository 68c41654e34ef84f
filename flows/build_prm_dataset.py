"""Problems to a reward model's data set: rollouts, step labels or verdicts or pairs, training rows with replay.

python -m flows.build_prm_dataset --config configs/quickstart.toml
"""

from prefect import flow
from rich.console import Console

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.labelling.receipt import render_receipt
from grpo_pipeline.stages.rounds import Labelled
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef
from tasks import stages


@flow(name="build-prm-dataset", flow_run_name="{config.name}")
def build_prm_dataset(config: RunConfig) -> Labelled:
    """Label solutions of the starting policy, and make the rows that the configured reward model trains on."""
    problems = stages.make_problems(config)
    policy = stages.base_policy(config)
    return label_round(config, 0, problems, policy, ())


def label_round(
    config: RunConfig, number: int, problems: ArtifactRef, policy: ModelRef, history: tuple[ArtifactRef, ...]
) -> Labelled:
    """Sample solutions of a round's policy, and make this round's rows of them.

    A PRM's rows need step labels, which completions are sampled for; what they cost is printed. An ORM's and a
    pairwise model's follow from the solutions' verdicts. `history` holds the earlier rounds' own rows.
    """
    rollouts = stages.sample_rollouts(config, "label", number, problems, policy)
    labels = None
    if config.reward_model.kind == "orm":
        rows = stages.build_orm_rows(config, number, problems, rollouts, policy)
    elif config.reward_model.kind == "pairwise":
        rows = stages.build_pair_rows(config, number, problems, rollouts, policy)
    else:
        completer = stages.choose_completer(config, policy)
        labels = stages.label_steps(config, number, problems, rollouts, completer)
        Console().print(render_receipt(labels.manifest().receipt))
        rows = stages.build_prm_rows(config, number, problems, rollouts, labels)
    dataset = stages.mix_replay(config, number, problems, rows, history)
    return Labelled(rollouts=rollouts, labels=labels, rows=rows, dataset=dataset)


if __name__ == "__main__":
    main(build_prm_dataset)
