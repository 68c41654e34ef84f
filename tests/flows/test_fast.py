"""--fast: the same comparison in small, from both ways of running it, and beaten by --set."""

from pathlib import Path

from typer.testing import CliRunner

from flows import cli
from flows.command import main
from grpo_pipeline.config import FAST_COMPARISON, load_config

SHIPPED = Path(__file__).parents[2] / "configs" / "compare_methods.toml"


def test_the_console_puts_fast_before_the_users_own(monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "_run_flow", lambda module, config, overrides: seen.append((module, overrides)))
    arguments = ["compare-methods", "--set", "policy.steps=4"]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    assert CliRunner().invoke(cli.app, [*arguments, "--fast"]).exit_code == 0
    plain, fast = seen
    assert plain == ("compare_methods", ["policy.steps=4"])
    assert fast == ("compare_methods", [*FAST_COMPARISON, "policy.steps=4"])


def test_a_module_run_by_hand_takes_fast_too():
    seen = []

    def flow(config):
        """A flow."""
        seen.append(config)

    own = ["--config", str(SHIPPED), "--set", "evaluation.samples=4"]
    main(flow, [*own, "--fast"], fast=FAST_COMPARISON)
    main(flow, own, fast=FAST_COMPARISON)
    assert [one.evaluation.samples for one in seen] == [4, 4]
    assert [one.policy.steps for one in seen] == [2, load_config(SHIPPED).policy.steps]
    assert seen[0] == load_config(SHIPPED, [*FAST_COMPARISON, "evaluation.samples=4"])
