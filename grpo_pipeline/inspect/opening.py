"""What a path given on the command line is: an artifact of a run, or a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.store.manifest import ARTIFACTS


def open_path(path: str) -> ArtifactRef | Store:
    """The artifact in a folder ``RUN/artifacts/NAME``, or the run in a folder.

    Raises:
        UserError: It is neither.
    """
    if _split(path) is not None:
        return open_artifact(path)
    store = Store(path.rstrip("/") or path)
    store.artifacts()  # says what is wrong where there is no run
    return store


@contextmanager
def explain_damage(root: str) -> Iterator[None]:
    """Say in words what is wrong with a run whose tables cannot be decoded.

    Looking at a run checks sizes and footers only. Where polars then fails, the files' hashes tell whether a file has
    changed since it was written; what remains is an error of the program's and is raised as it is.

    Args:
        root: The run.
    """
    from polars.exceptions import PolarsError

    try:
        yield
    except PolarsError as error:
        from grpo_pipeline.store.verify import verify

        damages = [finding for finding in verify(root) if finding.kind in ("damaged", "schema", "rows")]
        if not damages:
            raise
        more = f" ({len(damages) - 1} more: grpo-pipeline verify)" if len(damages) > 1 else ""
        raise UserError(f"{damages[0].message}{more}") from error


def open_artifact(path: str) -> ArtifactRef:
    """The artifact in a folder ``RUN/artifacts/NAME``.

    Raises:
        UserError: There is no finished artifact.
    """
    if (found := _split(path)) is not None:
        run, name = found
        # Its own manifest alone is read: another that is broken does not matter here.
        ref = Store(run).artifact(name)
        if ref is not None:
            return ref
    raise UserError(
        f"{path}: there is no finished artifact here; give a folder such as RUN/artifacts/step_labels-r0-..."
    )


def _split(path: str) -> tuple[str, str] | None:
    """RUN and NAME, if the path is RUN/artifacts/NAME from wherever it is given."""
    whole = path.rstrip("/") if "://" in path else os.path.normpath(Path(path).absolute())
    run, folder, name = ("", "", *whole.rsplit("/", 2))[-3:]
    return (run, name) if folder == ARTIFACTS and run else None
