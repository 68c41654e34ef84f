import json

import polars as pl
import pytest
import torch

from grpo_pipeline import rollouts
from grpo_pipeline.config import EngineConfig, ModelConfig, TrainingConfig, parse_config
from grpo_pipeline.engines.transformers import TransformersEngine
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.loading import load_policy, read_info
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.tables import conform
from grpo_pipeline.training import exploration
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.exploration import choose_problems
from grpo_pipeline.training.monitors import reward_hacking
from grpo_pipeline.training.policy import train_policy
from tests.training.toy_policies import make_problems, parity_checker, save_policy


@pytest.fixture(autouse=True)
def _toy_checker(monkeypatch):
    def check(frame, problems):
        return rollouts.check_rollouts(frame, problems, checker=parity_checker, checker_version="parity")

    monkeypatch.setattr(exploration, "check_rollouts", check)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    policy = save_policy(tmp_path_factory.mktemp("policy"))
    prm = tmp_path_factory.mktemp("prm")
    RewardModel.from_policy(policy, "prm", 0, device="cpu").save(prm, parents=[], settings={})
    return policy, prm


def run(
    tmp_path,
    folders,
    on_step=None,
    problems=None,
    training=None,
    fixed=None,
    reward_model=True,
    max_tokens=10,
    engine=None,
    **policy,
):
    settings = {
        "engine": engine or {},
        "sampling": {"max_tokens": max_tokens},
        "training": {"checkpoint_every": 0, **(training or {})},
        "policy": {
            "method": "grpo",
            "steps": 2,
            "problems_per_step": 3,
            "rollouts_per_problem": 4,
            "optimizer": {"lr": 5e-3},
            **policy,
        },
    }
    return train_policy(
        model_dir=folders[0],
        out_dir=tmp_path / "out",
        workdir=tmp_path / "work",
        problems=make_problems() if problems is None else problems,
        config=parse_config(settings, "test"),
        round=1,
        seed=0,
        policy_id="abc",
        reward_model_dir=folders[1] if reward_model else None,
        fixed_rollouts=fixed,
        on_step=on_step,
    )


def test_process_supervision_gives_tables_that_the_store_takes(tmp_path, folders):
    seen = {}
    result = run(tmp_path, folders, seen.__setitem__)
    assert list(seen) == [1, 2]
    frames = seen[2]
    assert set(frames) == {"rollouts", "checked", "steps", "step_scores", "advantages", "metrics"}
    for table, frame in frames.items():
        conform(frame, table, "test")
        assert frame.select(TABLES[table].key).is_duplicated().sum() == 0
    # Sampled by the weights after the first update, and stamped so.
    assert set(seen[1]["rollouts"]["policy_id"]) == {"abc"}
    assert set(frames["rollouts"]["policy_id"]) == {"abc@1"}
    scored = frames["advantages"]["step_rewards"].list.len()
    assert (scored == frames["advantages"]["step_advantages"].list.len()).all()
    assert result.counts["rollouts"] == 24
    assert result.counts["sampled_tokens"] == sum(f["rollouts"]["token_ids"].list.len().sum() for f in seen.values())
    names = ["reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/low_mean", "loss"]
    names += ["completions/mean_length", "completions/clipped_ratio", "step_time", "num_tokens", "grad_norm"]
    names += ["learning_rate", "perplexity", "steps_per_response", "prm_outcome_gap", "accuracy"]
    assert set(names) <= set(result.metrics.columns)
    info = read_info(tmp_path / "out")
    assert info.kind == "policy"
    assert len(info.parents) == 2
    json.dumps(info.settings)
    load_policy(tmp_path / "out", device="cpu")


def test_sampler_and_trainer_agree_on_log_probabilities(tmp_path, folders):
    metrics = run(tmp_path, folders).metrics
    assert metrics["sampling/sampling_logp_difference/mean"].max() < 1e-5
    assert metrics["kl"][0] == pytest.approx(0, abs=1e-7)  # the reference is the policy that starts
    assert metrics["kl"][1] > 1e-4


def test_reference_is_never_loaded_without_beta(tmp_path, folders, monkeypatch):
    def never(*_):
        raise AssertionError("the reference was asked for")

    monkeypatch.setattr(Actor, "reference_logprobs", never)
    monkeypatch.setattr(Actor, "read_logprobs", never)  # nor old log-probabilities, exactly on policy
    run(tmp_path, folders, grpo={"beta": 0.0, "supervision": "outcome"}, reward_model=False)


def test_an_engine_with_weights_of_its_own_is_given_the_merged_ones(tmp_path, folders):
    """What vLLM and sharded training are handed: names as in the model's file, adapters added in."""
    training = TrainingConfig.model_validate({"lora": {"rank": 4}})
    actor = Actor(folders[0], ModelConfig.model_validate({"device": "cpu"}), training)
    for name, parameter in actor.parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    engine = TransformersEngine.load(folders[0], ModelConfig.model_validate({"device": "cpu"}), EngineConfig())
    engine.update_weights(actor.weights(), "m@1")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(engine.model(ids).logits, actor.model(ids).logits, rtol=0, atol=1e-5)
        plain = load_policy(folders[0], device="cpu")
        assert (engine.model(ids).logits - plain(ids).logits).abs().max() > 1e-3
    assert engine.model_id == "m@1"


def test_adapters_start_from_the_runs_seed(folders):
    """Not from the global random state: the same run has the same weights wherever it is started."""
    training = TrainingConfig.model_validate({"lora": {"rank": 4}})
    place = ModelConfig.model_validate({"device": "cpu"})
    torch.manual_seed(1)
    first = Actor(folders[0], place, training, seed=5).parameters
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, other = (Actor(folders[0], place, training, seed=seed).parameters for seed in (5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(state, torch.get_rng_state())


def test_lora_reference_is_the_base_model(tmp_path, folders):
    result = run(tmp_path, folders, training={"lora": {"rank": 4}}, optimizer={"lr": 5e-2})
    assert result.metrics["kl"][0] == pytest.approx(0, abs=1e-7)
    assert result.metrics["kl"][1] > 1e-5
    merged = load_policy(tmp_path / "out", device="cpu")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    before = load_policy(folders[0], device="cpu")
    changed = [
        n for (n, a), b in zip(merged.named_parameters(), before.parameters(), strict=True) if not torch.equal(a, b)
    ]
    assert changed
    assert all("_proj" in name for name in changed)


MONITORS = {
    "reward",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "perplexity",
    "steps_per_response",
    "frac_reward_zero_std",
    "accuracy",
    "alarm/reward_hacking",
}
CLIPPED = {"kl", "clip_ratio/low_mean", "clip_ratio/high_mean"}
SCORED = {"prm_outcome_gap"}


@pytest.mark.parametrize(
    ("method", "further"), [("grpo", CLIPPED | SCORED), ("ppo", CLIPPED | SCORED), ("online_rft", set())]
)
def test_every_online_method_is_watched(tmp_path, folders, method, further):
    """METHOD 7's monitors, in every step; KL and clip fraction where the method has a reference and a clip."""
    result = run(tmp_path, folders, method=method, reward={"model_weight": 0.1})
    for name in MONITORS | further:
        assert result.metrics[name].null_count() == 0, name
    assert (result.metrics["kl"] >= 0).all() if "kl" in further else True


def test_the_alarm_reaches_the_table_and_the_result(tmp_path, folders, monkeypatch):
    """A policy whose reward rises while its accuracy falls: every step's row and the run's result say so."""
    from grpo_pipeline.training import policy_trainer

    real = policy_trainer.experience_metrics
    steps = []

    def hacked(experience):
        steps.append(len(steps))
        return real(experience) | {"reward": 0.1 * len(steps), "accuracy": 0.9 - 0.02 * len(steps)}

    monkeypatch.setattr(policy_trainer, "experience_metrics", hacked)
    settings = {"problems_per_step": 1, "rollouts_per_problem": 2, "max_tokens": 2}
    settings |= {"grpo": {"supervision": "outcome", "beta": 0.0}, "reward_model": False}
    result = run(tmp_path / "long", folders, steps=21, **settings)
    assert result.metrics["alarm/reward_hacking"].to_list() == [0.0] * 19 + [1.0] * 2
    assert result.reward_hacking


def test_kl_limit_stops(tmp_path, folders):
    result = run(tmp_path, folders, steps=5, kl_limit=1e-6, grpo={"beta": 0.0}, optimizer={"lr": 5e-2})
    assert result.stopped_early
    assert result.counts["steps"] == 2


def test_fixed_samples_of_the_start_are_handed_over_and_can_be_given_again(tmp_path, folders):
    seen = {}
    first = run(tmp_path / "a", folders, seen.__setitem__, method="rft", epochs=3)
    assert set(seen[0]["rollouts"]["policy_id"]) == {"abc"}
    assert seen[0]["rollouts"]["step"].null_count() == seen[0]["rollouts"].height
    given = run(tmp_path / "b", folders, method="rft", epochs=3, fixed=seen[0])
    assert given.policy_id == first.policy_id
    with pytest.raises(UserError, match="missing: checked"):
        run(tmp_path / "c", folders, method="rft", fixed={"rollouts": seen[0]["rollouts"]})


def test_fixed_samples_without_a_correct_one_are_refused(tmp_path, folders):
    seen = {}
    run(tmp_path / "a", folders, seen.__setitem__, method="rft")
    wrong = seen[0] | {"checked": seen[0]["checked"].with_columns(verdict=pl.lit("wrong"))}
    with pytest.raises(UserError, match=r"none of \d+ fixed samples is correct \(0 undecided\)"):
        run(tmp_path / "b", folders, method="rft", fixed=wrong)


@pytest.mark.parametrize("method", ["grpo", "ppo", "online_rft"])
def test_steps_without_a_decided_rollout_are_counted_and_survived(tmp_path, folders, method, monkeypatch):
    def timeouts(frame, problems):
        checked = rollouts.check_rollouts(frame, problems, checker=parity_checker, checker_version="parity")
        return checked.with_columns(verdict=pl.lit("timeout"))

    monkeypatch.setattr(exploration, "check_rollouts", timeouts)
    settings = {"grpo": {"supervision": "outcome", "beta": 0.0}, "reward": {"truncated": "null"}}
    result = run(tmp_path, folders, method=method, **settings)
    assert result.counts["undecided"] == result.counts["rollouts"] == 24
    assert result.counts["optimizer_steps"] == 2
    assert "reward" not in result.metrics.columns
    before, after = (load_policy(folder, device="cpu") for folder in (folders[0], tmp_path / "out"))
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_stale_engine_is_an_error(tmp_path, folders, monkeypatch):
    original = TransformersEngine.generate

    def late(self, *args, **kwargs):
        results = original(self, *args, **kwargs)
        self.set_version("other")
        return results

    monkeypatch.setattr(TransformersEngine, "generate", late)
    with pytest.raises(RuntimeError, match="was not given the new weights"):
        run(tmp_path, folders)


def test_evaluation_problems_never_enter_training(tmp_path, folders):
    mixed = pl.concat([make_problems(3), make_problems(1, "eval")])
    with pytest.raises(ValueError, match="eval000"):
        run(tmp_path, folders, problems=mixed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_model": False}, "need a reward model"),
        ({"method": "sft"}, "needs demonstrations"),
        ({"method": "ppo", "ppo": {"ptx_weight": 0.1}}, "ptx_weight > 0 needs demonstrations"),
        ({"engine": {"kind": "server", "base_url": "http://x/v1"}}, "a server elsewhere is not given new weights"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(tmp_path, folders, settings, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, folders, **settings)


def test_problems_without_room_for_a_response_are_counted(tmp_path, folders):
    problems = make_problems()
    longer = pl.when(pl.col("problem_id") == problems["problem_id"][0]).then(pl.lit("1" * 200)).otherwise("question")
    result = run(tmp_path, folders, problems=problems.with_columns(question=longer), steps=4)
    assert result.counts["prompt_too_long"] > 0
    assert result.counts["rollouts"] == 4 * (4 * 3 - result.counts["prompt_too_long"])


def test_a_step_without_any_room_says_so(tmp_path, folders):
    problems = make_problems().with_columns(question=pl.lit("1" * 200))
    with pytest.raises(UserError, match=r"none of 3 prompts leaves room .* context of 128 tokens"):
        run(tmp_path, folders, problems=problems)


def test_problems_come_in_shuffled_epochs():
    names = [f"p{i}" for i in range(7)]
    steps = [choose_problems(names, 3, step, seed=1, round=1) for step in range(1, 5)]
    assert len(set(steps[0] + steps[1])) == 6  # an epoch repeats nothing; what is left over waits for the next
    assert steps[2:] != steps[:2]
    assert steps == [choose_problems(names[::-1], 3, step, seed=1, round=1) for step in range(1, 5)]
    assert len(choose_problems(names, 100, 1, seed=1, round=1)) == 7


def test_reward_hacking_alarm():
    up = [{"reward": 0.1 * i, "accuracy": 0.8} for i in range(20)]
    assert not reward_hacking(up)  # the reward rises and nothing is lost
    hacked = [{"reward": 0.1 * i, "accuracy": 0.8 - 0.02 * i} for i in range(20)]
    assert reward_hacking(hacked)
    assert not reward_hacking(hacked[:19])  # too few steps to tell
    noisy = [{"reward": 0.5 + 0.01 * (-1) ** i, "accuracy": 0.5 - 0.01 * (-1) ** i} for i in range(20)]
    assert not reward_hacking(noisy)


def test_float16_is_refused(folders):
    with pytest.raises(UserError, match="float16"):
        Actor(folders[0], ModelConfig.model_validate({"dtype": "float16"}), TrainingConfig())
