"""The section of workers: who makes the shards of a stage."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from grpo_pipeline.config.base import NonNegativeInt, PositiveInt, Section


def _reachable(address: str) -> str:
    if not re.fullmatch(r"auto|[^/\s:]+:[0-9]+", address):
        raise ValueError(
            "neither auto nor host:port; the machine that the stage runs on has to belong to the cluster (`ray start "
            "--address=host:port`; with --num-cpus=0 it takes no work), so Ray's client, ray://, will not do"
        )
    return address


class WorkersConfig(Section):
    """Who makes the shards of stages that sample, label or score: threads, processes, or workers on Ray.

    Rows are the same whoever makes them, so nothing here is a part of an artifact's identity.
    """

    task_runner: Literal["threads", "processes", "ray"] = Field(
        "threads",
        description="threads: of the stage's own process, with one model between them. processes: of this machine, "
        "each with a model of its own, and a GPU of its own where there are any. ray: processes, here or on other "
        "machines, each with a model of its own (needs the extra [ray]).",
    )
    count: PositiveInt = Field(
        1,
        description="Shards made at once; threads take turns at a local model. processes: as many as there are GPUs; "
        "on CPUs, as there are cores where the model is small, fewer where it fills them.",
    )
    ray_address: Annotated[str, AfterValidator(_reachable)] | None = Field(
        None,
        description="ray: address of a running cluster, host:port, or auto for the one that this machine belongs to; "
        "null starts one on this machine for each stage.",
    )
    num_cpus: PositiveInt = Field(1, description="ray: CPU cores that a worker reserves.")
    num_gpus: NonNegativeInt = Field(
        0,
        description="ray: GPUs that a worker reserves, and sees no others: what its model takes, or 0 for CPUs (where "
        "there are GPUs, with model.device = 'cpu').",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.task_runner != "ray":
            given = {"ray_address": self.ray_address is not None, "num_cpus": self.num_cpus != 1}
            given["num_gpus"] = self.num_gpus != 0
            if names := [name for name, is_given in given.items() if is_given]:
                raise ValueError(
                    f"{', '.join(names)}: only for workers on Ray; set task_runner = 'ray', or leave this out"
                )
        return self

    def check_places(self, device: str, gpus_of_model: int) -> None:
        """Raise ValueError where workers would not get the GPUs that the run's models ask for.

        Whether 'auto' asks for one depends on the machines: see `workers.ray_devices`.

        Args:
            device: `model.device`.
            gpus_of_model: GPUs that one engine is spread over.
        """
        if self.task_runner == "processes" and self.count > 1 and ":" in device:
            raise ValueError(
                f"model.device = {device!r}: with workers.task_runner = 'processes' each of the {self.count} takes "
                "GPUs of its own; set model.device = 'cuda' or 'auto'"
            )
        if self.task_runner != "ray":
            return
        if ":" in device:
            raise ValueError(
                f"model.device = {device!r}: with workers.task_runner = 'ray' it is Ray that says which GPU a worker "
                "gets; set model.device = 'cuda' or 'auto'"
            )
        if device == "cuda" and self.num_gpus == 0:
            raise ValueError(
                "model.device = 'cuda' and workers.num_gpus = 0, which gives a worker on Ray no GPU; set "
                f"workers.num_gpus = {gpus_of_model}, or model.device = 'cpu'"
            )
        if self.num_gpus not in (0, gpus_of_model):
            raise ValueError(
                f"workers.num_gpus = {self.num_gpus}, and a worker's model takes {gpus_of_model}: a GPU is no two "
                "workers' and no model's half; set num_gpus to that, or to 0 for CPUs"
            )
