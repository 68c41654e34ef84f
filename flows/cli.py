"""The console program `grpo-pipeline`: the library's commands and the flows.

Prefect is imported only by the commands that run a flow, so that the others start in a moment.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from grpo_pipeline.cli import app, run
from grpo_pipeline.config.comparison import FAST_COMPARISON

Config = Annotated[Path | None, typer.Option("--config", help="TOML file; the defaults where it is left out.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. policy.optimizer.lr=1e-5.")
]

FLOWS = {
    "iterate-rl": "The main job: rounds of RL with a reward model refreshed after each.",
    "build-prm-dataset": "Problems to labelled rows for PRM training.",
    "train-prm": "A reward model from labelled solutions of the starting policy.",
    "train-policy": "One round of policy training by the configured method.",
    "evaluate-prm": "ProcessBench, PRM800K and best-of-n of any reward model.",
    "evaluate": "Held-out accuracy, maj@k and pass@k of a model.",
}

Fast = Annotated[bool, typer.Option("--fast", help="The same in small, in about five minutes.")]


def _flow_command(name: str) -> Callable[..., None]:
    module = name.replace("-", "_")

    def command(config: Config = None, overrides: Overrides = None) -> None:
        _run_flow(module, config, overrides or [])

    return command


def _run_flow(module: str, config: Path | None, overrides: list[str]) -> None:
    from grpo_pipeline.config import load_config
    from tasks.quiet import quiet_user_errors

    settings = load_config(config, overrides)  # refused before Prefect is even imported
    flow = getattr(importlib.import_module(f"flows.{module}"), module)
    quiet_user_errors()
    flow(settings)


for _name, _help in FLOWS.items():
    app.command(_name, help=_help, rich_help_panel="Flows")(_flow_command(_name))


@app.command(
    "compare-methods", help="All methods side by side from one policy: tables and plots.", rich_help_panel="Flows"
)
def compare_methods(config: Config = None, overrides: Overrides = None, fast: Fast = False) -> None:
    """Run the comparison."""
    _run_flow("compare_methods", config, [*(FAST_COMPARISON if fast else ()), *(overrides or [])])


def main() -> None:
    """Run the console program."""
    run()


if __name__ == "__main__":
    main()
