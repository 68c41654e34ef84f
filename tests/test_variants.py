"""Variants of a comparison: what they change, what is refused, and that the shipped file is fair."""

import itertools
from pathlib import Path

import pytest

from grpo_pipeline.config import FAST_COMPARISON, RunConfig, load_config, parse_config, variant_config
from grpo_pipeline.errors import UserError

SHIPPED = Path(__file__).parents[1] / "configs" / "compare_methods.toml"


def comparison(**variants):
    return {"variants": {name: {"title": name} | variant for name, variant in variants.items()}}


def test_a_variant_changes_only_what_it_names():
    changes = {"method": "ppo", "optimizer": {"lr": 3e-4}}
    config = parse_config(
        {
            "policy": {"steps": 8, "optimizer": {"lr": 1e-4, "warmup_steps": 2}},
            "comparison": comparison(a={"rounds": 2, "policy": changes}),
        },
        "test",
    )
    one = variant_config(config, "a", 5)
    assert (one.seed, one.rounds, one.policy.steps) == (5, 2, 4)
    assert (one.policy.method, one.policy.optimizer.lr, one.policy.optimizer.warmup_steps) == ("ppo", 3e-4, 2)
    assert one.comparison.variants == {}
    unchanged = {name: getattr(config, name) for name in ("seed", "rounds", "policy", "comparison")}
    assert one.model_copy(update=unchanged) == config


@pytest.mark.parametrize("steps", [2, 6, 16])
def test_a_variants_configuration_can_be_sent_to_a_child(steps):
    """Also where a round's share of the steps is odd."""
    config = load_config(SHIPPED, [f"policy.steps={steps}"])
    for name in config.comparison.variants:
        one = variant_config(config, name, 1)
        assert RunConfig.model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (comparison(a={"policy": {"method": "gpro"}}), r"variants\.a\.policy\.method: .*'grpo'.* \(got 'gpro'\)"),
        (
            comparison(a={"policy": {"metod": "grpo"}}),
            r"variants\.a\.policy\.metod: unknown key; allowed here: .*method",
        ),
        (comparison(a={"rounds": 7}), "a: policy.steps = 30 cannot be shared evenly over 7 rounds"),
        (comparison(start={}), "'start' cannot be a variant's name"),
        (comparison(a={}) | {"seeds": [1, 1]}, "different numbers"),
        (comparison(a={}) | {"claims": [{"claim": "c", "better": "a", "worse": "b"}]}, "no variant 'b'"),
        (
            comparison(a={}) | {"claims": [{"claim": "c", "better": "a", "worse": "start", "metric": "maj64"}]},
            r"'maj64' is not measured with evaluation.samples = 8, .*; name one of those, or 'maj' for the largest",
        ),
        (
            comparison(a={}) | {"claims": [{"claim": "c", "better": "a", "worse": "start", "metric": "pass6"}]},
            "'pass6' is not measured",
        ),
        (
            comparison(a={}) | {"claims": [{"claim": "c", "better": "a", "worse": "start", "metric": "speed"}]},
            r"claims.*metric",
        ),
        (comparison(a={}) | {"claims": [{"claim": "c", "better": "a", "worse": "a"}]}, "'c' compares 'a' with itself"),
        (
            comparison(a={}) | {"claims": [{"claim": "c", "better": "a@1", "worse": "start"}]},
            r"'a@1': 'a' is measured after 1 rounds: the last alone, without @",
        ),
        (
            comparison(a={"rounds": 3}) | {"claims": [{"claim": "c", "better": "a@3", "worse": "a"}]},
            r"'a@3': 'a' is measured after 3 rounds: NAME@R with R from 1 to 2",
        ),
        (comparison(a={}) | {"highlights": ["b"]}, "highlights: at most eight of a, start; got b"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(section, message):
    with pytest.raises(UserError, match=message):
        parse_config({"comparison": section}, "test")


def test_the_shipped_variants_sample_the_same_number_of_rollouts():
    for overrides in ((), FAST_COMPARISON):
        config = load_config(SHIPPED, overrides)
        methods = set()
        for name, variant in config.comparison.variants.items():
            policy = variant_config(config, name, 1).policy
            methods.add(policy.method)
            rollouts = policy.steps * variant.rounds * policy.problems_per_step
            # A demonstration stands for a sample: SFT sees as many responses as the others.
            rollouts *= 1 if policy.method == "sft" else policy.rollouts_per_problem
            assert rollouts == config.policy.steps * 32 * 8, name
        assert methods == {"sft", "rft", "online_rft", "dpo", "ppo", "grpo"}
        assert len(config.comparison.seeds) >= 2


def test_the_shipped_variants_differ():
    config = load_config(SHIPPED)
    policies = [(one.rounds, one.policy) for one in config.comparison.variants.values()]
    assert all(a != b for a, b in itertools.combinations(policies, 2))
