"""A training in several processes: `accelerate launch` of `training.worker`, and what becomes of it.

The processes die with the one that launched them, whatever ends it (`processes.guard`).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.processes.guard import ProcessGuard, await_exit
from grpo_pipeline.training.jobs import Job, JobResult, write_job

RESULT, ERROR = "result.json", "error-{rank}.txt"
SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "accelerate"


def launch_job(job: Job, folder: Path) -> JobResult:
    """Do a training in `training.processes` processes.

    Args:
        job: What to train.
        folder: A scratch folder of this job alone, which all processes can read.

    Raises:
        UserError: A configuration that is not there or does not fit, or what the trainer itself raised.
        RuntimeError: If the processes died otherwise.
    """
    training = job.config.training
    configuration = launcher_file(training)
    device = job.config.model.device
    if device.startswith("cuda:"):
        raise UserError(
            f"model.device = {device!r} with training.processes = {training.processes}: each process takes a GPU of "
            "its own; set model.device = 'auto'"
        )
    shutil.rmtree(folder, ignore_errors=True)
    write_job(job, folder)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(configuration)]
    command += ["--num_processes", str(training.processes), "-m", "grpo_pipeline.training.worker", str(folder)]
    with ProcessGuard() as guard:
        # They find the user's functions where this process does.
        environment = guard.environment | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        # Out of the terminal's group: on Ctrl-C they end with the guard, and each says nothing of its own.
        code = await_exit(subprocess.Popen(command, env=environment, start_new_session=True))
    errors = [path.read_text(encoding="utf-8") for path in sorted(folder.glob(ERROR.format(rank="*")))]
    if errors:
        raise UserError(errors[0])
    if code != 0:
        raise RuntimeError(f"the {training.processes} training processes ended with {code}; see their output above")
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    return JobResult(**result)


def launcher_file(training: TrainingConfig) -> Path:
    """The accelerate configuration that `training.launcher` names.

    Raises:
        UserError: There is no such file.
    """
    shipped = SHIPPED / f"{training.launcher}.yaml"
    path = shipped if shipped.is_file() else Path(training.launcher).expanduser()
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml"))) or f"none in {SHIPPED}"
        raise UserError(
            f"training.launcher = {training.launcher!r}: no such accelerate configuration; shipped are {names}, and "
            "`accelerate config --config_file PATH` makes others"
        )
    return path.resolve()
