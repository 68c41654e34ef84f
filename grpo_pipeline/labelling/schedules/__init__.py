"""Schedules of completer calls, one file each; adding one is a file, its test and a line here."""

from grpo_pipeline.labelling.schedules.base import ScheduleFunction
from grpo_pipeline.labelling.schedules.binary import binary
from grpo_pipeline.labelling.schedules.brute import brute
from grpo_pipeline.labelling.schedules.closure import closure
from grpo_pipeline.labelling.schedules.first_error import first_error
from grpo_pipeline.labelling.schedules.soft_adaptive import soft_adaptive

SCHEDULES: dict[str, ScheduleFunction] = {
    "brute": brute,
    "first_error": first_error,
    "closure": closure,
    "binary": binary,
    "soft_adaptive": soft_adaptive,
}
