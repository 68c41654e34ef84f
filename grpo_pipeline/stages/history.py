"""The finished rounds of a run, by their records in the store, wherever the store lies now."""

from pathlib import Path

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages.rounds import STAGE, VERSION, Round
from grpo_pipeline.stages.run import ModelRef, Run
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.manifest import ARTIFACTS


def newest_round(config: RunConfig) -> Round | None:
    """The finished round with the highest number, its models ready for use; None where there is none.

    Raises:
        UserError: Two rounds have that number (their settings differ), or a model is gone or damaged.
    """
    records = _records(config)
    if not records:
        return None
    number = max(record.round for record in records)
    newest = [record for record in records if record.round == number]
    if len(newest) > 1:
        names = ", ".join(record.path.removeprefix(f"{ARTIFACTS}/") for record in newest)
        raise UserError(
            f"{newest[0].root}: round {number} is there more than once, made with different settings ({names}), so "
            "which one to go on from is not clear; remove the folders of all but one, or use another name"
        )
    found = _read(newest[0])
    return found.model_copy(update={"policy": _open(found.policy), "reward_model": _open(found.reward_model)})


def rounds_up_to(config: RunConfig, last: Round) -> tuple[Round, ...]:
    """The rounds that led to `last`, oldest first and `last` included, as far as their records are still there."""
    records = {record.fingerprint: record for record in _records(config)}
    rounds = [last]
    while (name := rounds[0].previous) is not None and name in records:
        rounds.insert(0, _read(records[name]))
    return tuple(rounds)


def _records(config: RunConfig) -> list[ArtifactRef]:
    store = Run(config).store
    return store.artifacts(STAGE) if store.files.exists(ARTIFACTS) else []


def _read(record: ArtifactRef) -> Round:
    manifest = record.manifest()
    if manifest.stage_version != VERSION:
        raise UserError(
            f"{record}: recorded by another version of grpo-pipeline; run iterate-rl with the configuration of that "
            "run once: it finds all that is there and records its rounds again"
        )
    found = Round.model_validate(manifest.receipt["round"])
    return _moved(found, found.labelled.rows.root, record.root).model_copy(update={"record": record})


def _moved(found: Round, old: str, new: str) -> Round:
    """The round with its references to the run's own store at the store's present place."""
    if old == new:
        return found

    def move(value: object) -> object:
        if isinstance(value, dict):
            moved = {key: move(item) for key, item in value.items()}
            return moved | {"root": new} if moved.get("root") == old else moved
        return [move(item) for item in value] if isinstance(value, list) else value

    return Round.model_validate(move(found.model_dump(mode="json")))


def _open(model: ModelRef) -> ModelRef:
    """The model with its folder as it is now: a remote store's is downloaded, a moved one's has another place."""
    if model.artifact is None:
        if not Path(model.folder).is_dir():
            raise UserError(f"{model.folder}: the model that the run started from is gone; put it back")
        return model
    return model.model_copy(update={"folder": model.artifact.model_path()})
