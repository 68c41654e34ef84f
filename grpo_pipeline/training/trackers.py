"""Metrics to TensorBoard, trackio or Weights & Biases, by accelerate's trackers, besides the metrics table.

Keys and addresses come from the environment (WANDB_API_KEY, WANDB_MODE=offline, ...), never from a configuration.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import polars as pl

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.errors import UserError


class Trackers:
    """The trackers of one training.

    Args:
        config: Which ones, and their project.
        name: The run's name in them.
        folder: Where TensorBoard and wandb keep their files.
        settings: JSON values that the run is shown with.

    Raises:
        UserError: If a library is not installed.
    """

    def __init__(self, config: TrainingConfig, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        for kind in config.report_to:
            if importlib.util.find_spec(kind) is None:
                raise UserError(
                    f"training.report_to names {kind!r}, which is not installed: pip install 'grpo-pipeline[{kind}]'"
                )
        if config.report_to:
            from accelerate import PartialState

            PartialState()  # accelerate's trackers ask it whether they are in the main process
        self._trackers = [_START[kind](config.report_project, name, folder, settings) for kind in config.report_to]

    def log(self, metrics: pl.DataFrame) -> None:
        """Hand on rows of the `metrics` table; a null is left out."""
        for row in metrics.iter_rows(named=True):
            values = {key: value for key, value in row.items() if key not in ("step", "stage") and value is not None}
            for tracker in self._trackers:
                tracker.log(values, step=row["step"])

    def close(self) -> None:
        """Write out what is left."""
        for tracker in self._trackers:
            tracker.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tensorboard(_: str, name: str, folder: Path, settings: Mapping[str, Any]) -> Any:
    from accelerate.tracking import TensorBoardTracker

    tracker = TensorBoardTracker(name, folder)
    tracker.start()
    tracker.writer.add_text("settings", f"```json\n{json.dumps(settings, indent=2, sort_keys=True)}\n```")
    return tracker


def _trackio(project: str, name: str, _: Path, settings: Mapping[str, Any]) -> Any:
    from accelerate.tracking import TrackioTracker

    tracker = TrackioTracker(project, name=name, config=dict(settings))
    tracker.start()
    return tracker


def _wandb(project: str, name: str, folder: Path, settings: Mapping[str, Any]) -> Any:
    from accelerate.tracking import WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    tracker = WandBTracker(project, name=name, dir=str(folder), config=dict(settings))
    tracker.start()
    return tracker


_START: dict[str, Callable[[str, str, Path, Mapping[str, Any]], Any]] = {
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}
