"""The configuration: what is refused, how it is said, and that every field explains itself."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from grpo_pipeline.config import ProblemsConfig, RunConfig, load_config, parse_config
from grpo_pipeline.errors import UserError

ROOT = Path(__file__).parents[1]


def sections(model=RunConfig, path=""):
    for name, field in model.model_fields.items():
        yield f"{path}{name}", field
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind, f"{path}{name}.")


def test_every_field_has_a_description():
    bare = [
        path
        for path, field in sections()
        if not field.description
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel))
    ]
    assert bare == []
    assert len(list(sections())) > 100


def test_every_field_is_read():
    code = "".join(
        path.read_text()
        for room in ("grpo_pipeline", "tasks", "flows")
        for path in (ROOT / room).rglob("*.py")
        if path.name != "config.py"
    )
    unread = [path for path, _ in sections() if not re.search(rf"\.{path.rsplit('.', 1)[-1]}\b", code)]
    assert unread == []


def test_defaults_are_valid_and_survive_json():
    config = load_config(None)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert config.problems.count == 1024


def test_toml_and_overrides(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\nseed = 3\n[policy]\nmethod = "ppo"\n[policy.optimizer]\nlr = 1e-5\n')
    config = load_config(
        path,
        [
            "policy.optimizer.lr=2e-4",
            "problems.count=null",
            "problems.source=data/x.jsonl",
            "sampling.stop=['a', 'b']",
            "model.device = cpu",
            "prompt.chat=true",
        ],
    )
    assert (config.name, config.seed, config.policy.method) == ("x", 3, "ppo")
    assert config.policy.optimizer.lr == 2e-4
    assert config.problems.count is None
    assert config.problems.source == "data/x.jsonl"
    assert config.sampling.stop == ("a", "b")
    assert config.model.device == "cpu"
    assert config.prompt.chat is True


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.optimiser.lr=1", r"policy.optimiser: unknown key; allowed here: .*optimizer"),
        ("polcy=1", "polcy: unknown key; allowed here: .*policy"),
        ("policy.optimizer.lr=-1", r"policy.optimizer.lr: .*greater than 0 \(got -1\)"),
        ("policy.optimizer.lr=inf", "policy.optimizer.lr: .*finite"),
        ("seed=x", r"seed: .*integer.*\(got 'x'\)"),
        ("seed=1.5", "seed: .*integer"),
        ("rounds=true", r"rounds: .*integer \(got true\)"),
        ("rounds='3'", r"rounds: .*integer \(got '3'\)"),
        ("rounds=2.0", r"rounds: .*integer \(got 2.0\)"),
        ("prompt.chat=1", r"prompt.chat: .*boolean \(got 1\)"),
        ("prompt.chat='yes'", r"prompt.chat: .*boolean \(got 'yes'\)"),
        ("policy.optimizer.lr=true", r"policy.optimizer.lr: .*number \(got true\)"),
        ("comparison.seeds=[1, true]", r"comparison.seeds.1: .*integer \(got true\)"),
        ("policy.reward.custom={'a:b'='1'}", r"policy.reward.custom.a:b: .*number \(got '1'\)"),
        ("model.path=3", r"model.path: .*string \(got 3\)"),
        (
            "comparison={variants={a={title='A', policy={steps=true}}}}",
            r"comparison.variants.a.policy.steps: Input should be a valid integer \(got true\)$",
        ),
        ("policy.method=grop", r"policy.method: .*'grpo'.*\(got 'grop'\)"),
        ("policy.rollouts_per_problem=1", "policy: rollouts_per_problem must be at least 2 for grpo"),
        ("problems.min_steps=9", r"problems: min_steps \(9\) is above max_steps \(4\)"),
        ("problems.count=null", "problems: count is required for source 'synthetic'"),
        ("prompt.template=hello", "prompt: template must hold {question} exactly once"),
        ("prompt.template={question} {question}", "prompt: template must hold {question} exactly once"),
        ("sampling.stop=['']", "sampling.stop.0: .*at least 1 character"),
        ("policy.optimizer.betas=[0.9, 1.0]", "policy.optimizer.betas.1: .*less than 1"),
        (
            "reward_model.kind=pairwise",
            "reward_model.kind = 'pairwise' scores whole solutions.*supervision = 'outcome'",
        ),
        ("reward_model={kind='orm', token_form={}}", "reward_model: token_form is a PRM's"),
        ("policy.reward={length_weight=0.1, length_target=256}", "length_target = 256 is not below .*max_tokens = 256"),
        ("reward_model.kind=orm", "reward_model.kind = 'orm' scores whole solutions.*supervision = 'outcome'"),
        ("prompt.system=be kind", "prompt: system needs chat = true"),
        ("engine.kind=server", "engine: engine.kind = 'server' needs base_url"),
        ("name=../x", "name: "),
        (f"name={'n' * 129}", "name: .*at most 128 characters"),
        ("root=", "root: .*at least 1 character"),
        ("root=s3://", "root: it names no place after ://"),
        ("model.path=", "model.path: .*at least 1 character"),
        ("reward_model.token_form={good='+', bad='+'}", "reward_model.token_form: good and bad are both"),
        ("model.device=gpu", r"model.device: .*\(got 'gpu'\)"),
        ("replay.fraction=1", "replay.fraction: .*less than 1"),
        ("sampling.top_p=0", "sampling.top_p: .*greater than 0"),
        ("seed", r"--set seed: expected KEY=VALUE"),
        ("=1", "expected KEY=VALUE"),
        ("seed.x=1", None),
    ],
)
def test_bad_values_name_the_key_and_what_is_allowed(override, message):
    with pytest.raises(UserError, match=message):
        load_config(None, [override])


@pytest.mark.parametrize("value", [True, False, 0, 1, 3, 0.5, 2.0, "3", "0.5", "true", "yes"])
def test_a_setting_takes_no_value_of_another_type(value):
    """Of every setting: a value is refused, or it is the value that the configuration then has."""
    for path, _ in sections():
        *parents, name = path.split(".")
        data = {name: value}
        for parent in reversed(parents):
            data = {parent: data}
        try:
            config = RunConfig.model_validate(data)
        except ValidationError:
            continue
        for part in path.split("."):
            config = getattr(config, part)
        assert config == value, path
        assert type(config) is type(value) or (type(value) is int and type(config) is float), path


def test_override_below_a_value_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("seed = 1\n")
    with pytest.raises(UserError, match="seed is a value, not a section"):
        load_config(path, ["seed.x=1"])


def test_a_file_as_windows_writes_it_is_read(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\r\nrounds = 0\r\n")
    assert load_config(path).seed == 3


def test_every_problem_is_listed_at_once():
    with pytest.raises(UserError, match=r"(?s)here: 3 problem.*seed.*rounds.*extra"):
        parse_config({"seed": -1, "rounds": "x", "extra": 1}, "here")


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(UserError, match="no such configuration file"):
        load_config(tmp_path / "nowhere.toml")
    path = tmp_path / "x.toml"
    path.write_text("seed = \n")
    with pytest.raises(UserError, match=r"x.toml: not valid TOML.*line 1"):
        load_config(path)
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path)


def test_sections_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        ProblemsConfig(count=1).count = 2


def test_a_refreshed_reward_model_has_its_own_passes_and_rate():
    config = parse_config(
        {"reward_model": {"optimizer": {"lr": 2e-3, "warmup_steps": 3}, "epochs": 4, "refresh_lr": 1e-3}}, "test"
    ).reward_model
    first, later = config.of_round(0), config.of_round(2)
    assert (first.optimizer.lr, first.epochs) == (2e-3, 4)
    assert (later.optimizer.lr, later.epochs, later.optimizer.warmup_steps) == (1e-3, 4, 3)
    assert config.model_copy(update={"refresh_epochs": 1}).of_round(1).epochs == 1
    # A refresh setting is no part of the first model's identity.
    assert first == config.model_copy(update={"refresh_lr": 5e-4, "refresh_epochs": 9}).of_round(0)
