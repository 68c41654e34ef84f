"""What a path given on the command line is: an artifact of a run, or a run."""

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import ArtifactRef, Store


def open_path(path: str) -> ArtifactRef | Store:
    """The artifact in a folder ``RUN/artifacts/NAME``, or the run in a folder.

    Raises:
        UserError: It is neither.
    """
    parts = path.rstrip("/").rsplit("/", 2)
    if len(parts) == 3 and parts[1] == "artifacts":
        return open_artifact(path)
    store = Store(path.rstrip("/") or path)
    store.artifacts()  # says what is wrong where there is no run
    return store


def open_artifact(path: str) -> ArtifactRef:
    """The artifact in a folder ``RUN/artifacts/NAME``.

    Raises:
        UserError: There is no finished artifact.
    """
    parts = path.rstrip("/").rsplit("/", 2)
    if len(parts) == 3 and parts[1] == "artifacts":
        for ref in Store(parts[0]).artifacts():
            if ref.path == f"artifacts/{parts[2]}":
                return ref
    raise UserError(
        f"{path}: there is no finished artifact here; give a folder such as RUN/artifacts/step_labels-r0-..."
    )
