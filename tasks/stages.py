"""The tasks of the flows, one a stage; what each does stands in `grpo_pipeline.stages`."""

from grpo_pipeline.stages.catalog import Stages
from tasks.stage import stage_task

STAGES = Stages(stage_task)
