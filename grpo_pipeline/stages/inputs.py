"""The files and folders that a job reads, looked for before it starts: without torch, a server or a child process.

What a path holds is read by the stages; here it is only found, and what its place and manifest tell is checked.
"""

from pathlib import Path

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.forms import find_form
from grpo_pipeline.inspect.opening import open_artifact
from grpo_pipeline.models.folders import check_model_folder, find_model_folder
from grpo_pipeline.problems.loading import SYNTHETIC
from grpo_pipeline.problems.records import find_source
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.store import ArtifactRef


def check_inputs(config: RunConfig, job: str) -> None:
    """Look whether all that a job reads is there.

    Args:
        config: The run.
        job: The job's name, as `grpo-pipeline run` has it; of any other name what most jobs read is looked for.

    Raises:
        UserError: A file or folder is not there or is not what the job needs; names the setting.
    """
    if job == "evaluate-prm":
        find_prm(config)
        for entry in config.prm_evaluation.files:
            find_file(entry)
        for folder in config.prm_evaluation.rollouts:
            find_rollouts(folder)
        if asks_as_prompt(config):
            check_problems(config)
        return
    find_model_folder(config.model.path)
    reads_dataset = job == "train-prm" or (job == "train-policy" and needs_reward_model(config.policy))
    reads_dataset = reads_dataset and config.prm_dataset is not None
    if reads_dataset:
        find_dataset(config)
        if job == "train-prm":
            return
    check_problems(config)
    labels = job != "evaluate" and (job != "train-policy" or (needs_reward_model(config.policy) and not reads_dataset))
    if config.labelling.completer is not None and labels:
        find_model_folder(config.labelling.completer.path, "labelling.completer.path")


def check_problems(config: RunConfig) -> None:
    """Look for the files of `problems.source` and `problems.eval_source`."""
    for name, source in (("source", config.problems.source), ("eval_source", config.problems.eval_source)):
        if source in (None, SYNTHETIC):
            continue
        try:
            find_source(source)
        except UserError as error:
            raise UserError(f"problems.{name}: {error}") from None


def asks_as_prompt(config: RunConfig) -> bool:
    """Whether `evaluate-prm` asks with worked examples, which are the run's problems."""
    return config.prm_evaluation.form == "own" and config.prompt.examples > 0


def find_dataset(config: RunConfig) -> ArtifactRef:
    """The artifact of `prm_dataset`.

    Raises:
        UserError: There is none, or it has no rows for this kind of reward model.
    """
    ref = _open(config.prm_dataset or "", "prm_dataset")
    table = "preference_pairs" if config.reward_model.kind == "pairwise" else "prm_dataset"
    if table not in ref.tables:
        raise UserError(
            f"{ref}: no {table} table, which reward_model.kind = {config.reward_model.kind!r} is trained on; import "
            "with --model, or give an artifact of stage prm_dataset"
        )
    return ref


def find_prm(config: RunConfig) -> Path:
    """The folder of `prm_evaluation.model`.

    Raises:
        UserError: It is not set or holds no model, or there is nothing to measure it on.
    """
    if config.prm_evaluation.model is None:
        raise UserError("prm_evaluation.model is not set: give the reward model's folder")
    if not config.prm_evaluation.files and not config.prm_evaluation.rollouts:
        raise UserError("nothing to measure on: set prm_evaluation.files (FORM:PATH) or prm_evaluation.rollouts")
    folder = Path(config.prm_evaluation.model)
    check_model_folder(folder)
    return folder


def find_file(entry: str) -> tuple[str, Path]:
    """Form and path of one of `prm_evaluation.files`.

    Raises:
        UserError: The entry is not FORM:PATH, there is no such form, or no such file.
    """
    form, colon, name = entry.partition(":")
    if not colon:
        raise UserError(f"prm_evaluation.files: {entry!r} is not FORM:PATH, such as processbench:gsm8k.json")
    find_form(form)
    path = Path(name)
    if not path.is_file():
        raise UserError(f"prm_evaluation.files: {path}: no such file")
    return form, path


def find_rollouts(folder: str) -> ArtifactRef:
    """An artifact with checked rollouts, one of `prm_evaluation.rollouts`.

    Raises:
        UserError: There is none, or it has no steps.
    """
    ref = _open(folder, "prm_evaluation.rollouts")
    if "steps" not in ref.tables:
        raise UserError(f"{folder}: prm_evaluation.rollouts needs artifacts with steps, such as evaluate_rollouts")
    return ref


def _open(folder: str, setting: str) -> ArtifactRef:
    try:
        return open_artifact(folder)
    except UserError as error:
        raise UserError(f"{setting}: {error}") from None
