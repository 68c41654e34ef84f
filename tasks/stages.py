"""The tasks of the flows, one a stage; what each does stands in `grpo_pipeline.stages`."""

from grpo_pipeline.stages import comparison, evaluation, labels, models, prm_files, problems, rollouts, rounds
from tasks.stage import stage_task

make_problems = stage_task(problems.make_problems)
base_policy = stage_task(models.base_policy)
choose_completer = stage_task(models.choose_completer)
sample_rollouts = stage_task(rollouts.sample_rollouts)
label_steps = stage_task(labels.label_steps)
build_prm_rows = stage_task(labels.build_prm_rows)
mix_replay = stage_task(labels.mix_replay)
train_reward_model = stage_task(models.train_reward_model)
train_policy = stage_task(models.train_policy)
score_rollouts = stage_task(evaluation.score_rollouts)
evaluate_policy = stage_task(evaluation.evaluate_policy)
evaluate_prm = stage_task(evaluation.evaluate_prm)
open_dataset = stage_task(prm_files.open_dataset)
open_prm = stage_task(prm_files.open_prm)
import_labelled = stage_task(prm_files.import_labelled)
score_labelled = stage_task(prm_files.score_labelled)
evaluate_labelled = stage_task(prm_files.evaluate_labelled)
finish_round = stage_task(rounds.finish_round)
measure_problems = stage_task(comparison.measure_problems)
compare_trials = stage_task(comparison.compare_trials)
