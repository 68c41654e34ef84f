"""Training in several processes: the same loss and weights as in one, written once, and none left behind."""

import json
import signal
import subprocess
import sys
import time

import polars as pl
import psutil
import pytest
import torch
from safetensors.torch import load_file

from grpo_pipeline.config import TrainingConfig, parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.stages import models
from grpo_pipeline.stages.run import ModelRef, Run
from grpo_pipeline.store import ShardResult
from grpo_pipeline.tables import conform
from grpo_pipeline.training.launch import launcher_file
from grpo_pipeline.training.loop import own_batches, read_all
from grpo_pipeline.training.processes import Processes
from grpo_pipeline.training.runner import Runner
from tests.training.test_reward_model import pairs, prm_rows
from tests.training.toy_policies import make_model, make_problems, make_rows, save_policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return ModelRef(folder=save_policy(tmp_path_factory.mktemp("policy")), model_id="abc")


def configuration(root, processes=1, launcher="ddp", kind="prm", training=None, epochs=2, **policy):
    return parse_config(
        {
            "root": str(root),
            "name": f"{launcher}{processes}",
            "model": {"device": "cpu"},
            "sampling": {"max_tokens": 10},
            "training": {
                "processes": processes,
                "launcher": launcher,
                "tokens_per_microbatch": 128,
                "checkpoint_every": 1,
                **(training or {}),
            },
            "reward_model": {"kind": kind, "batch_size": 12, "epochs": epochs, "optimizer": {"lr": 1e-2}},
            "policy": {
                "method": "grpo",
                "steps": 2,
                "problems_per_step": 3,
                "rollouts_per_problem": 4,
                "updates_per_step": 2,
                "optimizer": {"lr": 1e-3},
                "grpo": {"supervision": "process" if kind == "prm" else "outcome"},
                **policy,
            },
        },
        "test",
    )


def artifact(config, table, frame):
    run = Run(config)
    frame = pl.from_arrow(conform(frame, table, "test"))
    return run.store.build(run.spec(table, 1, 0, ()), 1, lambda _: ShardResult({table: frame}))


def train_prm(config, policy):
    return models.train_reward_model(config, 0, artifact(config, "prm_dataset", prm_rows()), policy)


def train_grpo(config, policy):
    folder = Run(config).scratch("prm")
    prm_id = RewardModel.from_policy(policy.folder, "prm", 0, device="cpu").save(folder, parents=[], settings={})
    problems = artifact(config, "problems", make_problems())
    return models.train_policy(config, 1, problems, policy, ModelRef(folder=folder, model_id=prm_id))


def assert_same(one, many):
    first, second = (load_file(ref.folder / "model.safetensors") for ref in (one, many))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=1e-5)
    ours, theirs = (ref.artifact.read("metrics").sort("step") for ref in (one, many))
    timeless = [name for name in ours.columns if "time" not in name]
    for name in timeless:
        if ours[name].dtype.is_float():
            assert theirs[name].to_list() == pytest.approx(ours[name].to_list(), abs=1e-5), name
    assert many.artifact.manifest().counts == one.artifact.manifest().counts
    assert (many.folder / "grpo_pipeline.json").read_text() == (one.folder / "grpo_pipeline.json").read_text()


def test_two_processes_train_as_one(tmp_path, policy):
    """The whole way: stage, `accelerate launch`, two gloo processes, shards and model in one artifact."""
    one = train_prm(configuration(tmp_path / "one"), policy)
    two = train_prm(configuration(tmp_path / "two", processes=2), policy)
    assert one.artifact.fingerprint == two.artifact.fingerprint  # it is the same model, so the same artifact
    before = load_file(policy.folder / "model.safetensors")
    assert any(
        not torch.equal(before[n], t) for n, t in load_file(one.folder / "model.safetensors").items() if n in before
    )
    assert_same(one, two)
    assert not list(tmp_path.rglob("job.json"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    ("train", "settings"),
    [
        (train_prm, {}),
        (train_grpo, {}),
        (train_grpo, {"method": "ppo", "ppo": {"critic_lr": 1e-3, "critic_warmup": 1, "ptx_weight": 0.1}}),
        (train_grpo, {"training": {"lora": {"rank": 4}}}),
        (train_grpo, {"training": {"packing": False, "gradient_checkpointing": True}}),
    ],
    ids=["prm", "grpo", "ppo", "grpo-lora", "grpo-padded"],
)
def test_several_processes_train_as_one(tmp_path, policy, launcher, train, settings):
    one = train(configuration(tmp_path / "one", **settings), policy)
    two = train(configuration(tmp_path / "two", processes=2, launcher=launcher, **settings), policy)
    assert_same(one, two)
    if train is train_grpo:
        ours, theirs = (ref.artifact.read("rollouts").sort("rollout_id") for ref in (one, two))
        assert ours.drop("logprobs").equals(theirs.drop("logprobs"))  # whoever sampled them
        rewards, again = (ref.artifact.read("advantages").sort("rollout_id") for ref in (one, two))
        assert again["outcome_reward"].to_list() == pytest.approx(rewards["outcome_reward"].to_list(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
def test_pairwise_with_the_language_model_term(tmp_path, policy, launcher):
    frame = pairs().with_columns(
        pair_id=pl.col("problem_id"),
        round=pl.lit(0, pl.Int32),
        split=pl.lit("train"),
        chosen_id=pl.lit("a"),
        rejected_id=pl.lit("b"),
        is_replay=pl.lit(value=False),
    )

    def train(config):
        settings = {"beta_rm": 0.5, "batch_size": 5}
        config = config.model_copy(update={"reward_model": config.reward_model.model_copy(update=settings)})
        return models.train_reward_model(config, 0, artifact(config, "preference_pairs", frame), policy)

    one = train(configuration(tmp_path / "one", kind="pairwise"))
    two = train(configuration(tmp_path / "two", processes=2, launcher=launcher, kind="pairwise"))
    assert_same(one, two)


@pytest.mark.slow
def test_a_users_mistake_in_a_process_is_one_message(tmp_path, policy):
    config = configuration(tmp_path, processes=2)
    rows = prm_rows().with_columns(soft=pl.lit([None, None, None], pl.List(pl.Float32)))
    with pytest.raises(UserError, match="no row to train the prm on is left of 24"):
        models.train_reward_model(config, 0, artifact(config, "prm_dataset", rows), policy)


KILLED = """
import sys
from pathlib import Path
from grpo_pipeline.stages.run import ModelRef
from tests.training.test_processes import configuration, train_prm

train_prm(configuration(sys.argv[1], processes=2, epochs=40), ModelRef(folder=Path(sys.argv[2]), model_id="abc"))
"""


@pytest.mark.slow
@pytest.mark.chaos
def test_killed_and_resumed_by_another_number_of_processes(tmp_path, policy):
    """SIGKILL to the one that launched: the processes die too, and one process goes on from their checkpoint."""
    whole = train_prm(configuration(tmp_path / "whole", epochs=40), policy)
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(policy.folder)])
    checkpoints = "staging/*/work/checkpoints/step-*"
    try:
        wait_for(lambda: list((tmp_path / "killed").rglob(checkpoints)) or child.poll() is not None, 600)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    wait_for(lambda: not workers_of(tmp_path / "killed"), 60)
    assert list((tmp_path / "killed").rglob(checkpoints)), "it had finished before it was killed"
    # The folder is that of the run that was killed; one process goes on.
    alone = configuration(tmp_path).training
    config = configuration(tmp_path / "killed", processes=2, epochs=40).model_copy(update={"training": alone})
    resumed = train_prm(config, policy)
    ours, theirs = (ref.artifact.read("metrics").sort("step") for ref in (whole, resumed))
    assert theirs["step"].to_list() == list(range(1, 81))  # every step once, whoever did it
    # Adam carries the order of additions on; what is learnt is the same.
    assert theirs["loss"][:10].to_list() == pytest.approx(ours["loss"][:10].to_list(), abs=1e-4)
    assert theirs["accuracy"][-1] == 1.0


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(folder):
    """Training processes, and what launched them, whose job is in a folder."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in commands if "grpo_pipeline.training.worker" in line and str(folder) in line[-1]]


class Fellow(Processes):
    """One of several processes, without any connection."""

    def __init__(self, rank, count, is_sharded=False):
        self.rank, self.count, self.is_sharded = rank, count, is_sharded


def test_micro_batches_are_divided_evenly_and_none_is_lost():
    rows = make_rows(groups=5, per_group=3)
    plan = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13], [14]]
    given = [own_batches(plan, rows, Fellow(rank, 4)) for rank in range(4)]
    assert sorted(batch for of in given for batch, counts in of) == sorted(plan)
    assert all(counts for of in given for _, counts in of)
    costs = [sum(len(rows[i].tokens) for batch, _ in of for i in batch) for of in given]
    heaviest = max(sum(len(rows[i].tokens) for i in batch) for batch in plan)
    assert max(costs) - min(costs) <= heaviest


def test_sharded_processes_run_equally_many_and_count_each_once():
    rows = make_rows(groups=1, per_group=3)
    plan = [[0], [1], [2]]
    given = [own_batches(plan, rows, Fellow(rank, 2, is_sharded=True)) for rank in range(2)]
    assert [len(of) for of in given] == [2, 2]
    assert sorted(batch for of in given for batch, counts in of if counts) == plan
    assert own_batches([], [], Fellow(0, 2, is_sharded=True)) == []


def test_a_step_that_one_process_could_hold_is_cut_for_all():
    settings = TrainingConfig.model_validate({"tokens_per_microbatch": 10_000})
    rows = make_rows(groups=8, per_group=4)
    model = make_model()
    assert len(Runner([model], 0, settings).plan(rows)) == 1
    assert len(Runner([model], 0, settings, Fellow(0, 4)).plan(rows)) >= 4


def test_out_of_memory_elsewhere_halves_the_budget_here_too():
    """Processes must cut alike: what one could not hold, none tries again."""

    class ShortOnce(Fellow):
        asked = 0

        def any(self, flag):
            assert flag is False  # here there was memory enough
            self.asked += 1
            return self.asked == 1

    fellow = ShortOnce(0, 2)
    model = make_model(dtype=torch.float32)
    runner = Runner([model], 0, TrainingConfig.model_validate({"tokens_per_microbatch": 400}), fellow)
    rows = make_rows(groups=4, per_group=3)
    got = read_all_rows(runner, rows)
    assert runner.budget == 200
    assert fellow.asked == 2
    assert got  # this process's rows


def read_all_rows(runner, rows):
    seen = []

    def read(batch):
        states = runner.hidden(batch)
        seen.extend(batch.rows)
        return states

    # Its fellow's rows never come, as there is none.
    with pytest.raises(KeyError):
        read_all(runner, rows, read)
    return seen


def test_a_launcher_that_is_not_there_says_which_are():
    with pytest.raises(UserError, match="shipped are ddp, fsdp2"):
        launcher_file(TrainingConfig.model_validate({"launcher": "horovod"}))


@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
def test_shipped_configurations_are_accelerates(launcher):
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(launcher_file(TrainingConfig.model_validate({"launcher": launcher}))))
    assert loaded.main_process_port == 0
    if launcher == "fsdp2":
        assert loaded.fsdp_config["fsdp_version"] == 2
    json.dumps(loaded.to_dict(), default=str)
