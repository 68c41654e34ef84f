"""Whether the configuration says where workers on Ray compute."""

from typing import Any

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError


def check_devices(ray: Any, config: RunConfig, num_gpus: int) -> None:
    """Refuse workers that would compute on CPUs although there are GPUs, where nobody has said so.

    With model.device = 'auto' the same settings, and so the same artifact, mean bfloat16 on a GPU in a thread of the
    stage's process, and float32 on the CPU in a worker that reserves none.

    Args:
        ray: The connected module.
        config: The run's settings.
        num_gpus: GPUs that each worker reserves.

    Raises:
        UserError: A device is 'auto', no worker reserves a GPU, and the cluster or this machine has one.
    """
    places = {"model": config.model, "labelling.completer": config.labelling.completer}
    open_ones = [f"{name}.device" for name, place in places.items() if place is not None and place.device == "auto"]
    if num_gpus or not open_ones:
        return
    in_cluster = int(ray.cluster_resources().get("GPU", 0))
    if not in_cluster and not _has_gpu_here():
        return
    where = f"the Ray cluster has {in_cluster}" if in_cluster else "this machine has one"
    gpus_of_model = config.engine.gpus or 1
    raise UserError(
        f"{' and '.join(open_ones)} = 'auto' and workers.num_gpus = 0: of GPUs {where}, and workers on Ray would "
        f"compute on CPUs, in another dtype and with other rows; set workers.num_gpus = {gpus_of_model}, or 'cpu' as "
        "the device"
    )


def _has_gpu_here() -> bool:
    import torch

    return torch.cuda.is_available()
