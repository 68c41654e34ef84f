"""The console program `grpo-pipeline`: the library's commands and the flows.

Prefect is imported only by the commands that run a flow, so that the others start in a moment.
"""

import importlib
import json
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
    "next-round": "One more round of a run, after its newest finished one: what a schedule starts.",
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
    from flows.ready import make_ready
    from grpo_pipeline.config import load_config

    settings = load_config(config, overrides)  # refused before Prefect is even imported
    make_ready(settings, module.replace("_", "-"))
    from flows.command import run as run_flow
    from flows.server import require_server
    from tasks.quiet import quiet_user_errors

    flow = getattr(importlib.import_module(f"flows.{module}"), module)
    quiet_user_errors()
    require_server(module.replace("_", "-"))
    run_flow(flow, settings)


for _name, _help in FLOWS.items():
    app.command(_name, help=_help, rich_help_panel="Flows")(_flow_command(_name))


@app.command(
    "compare-methods", help="All methods side by side from one policy: tables and plots.", rich_help_panel="Flows"
)
def compare_methods(config: Config = None, overrides: Overrides = None, fast: Fast = False) -> None:
    """Run the comparison."""
    _run_flow("compare_methods", config, [*(FAST_COMPARISON if fast else ()), *(overrides or [])])


_SERVER = "Prefect server"


@app.command(rich_help_panel=_SERVER)
def serve(
    limit: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
) -> None:
    """Offer all flows on the Prefect server and run them here, without a work pool and a worker."""
    import prefect

    from flows.deployments import DEPLOYMENTS

    prefect.serve(*(one.for_serving() for one in DEPLOYMENTS), limit=limit)


@app.command("setup-prefect", rich_help_panel=_SERVER)
def setup_prefect_command(
    devices: Annotated[
        int, typer.Option(min=1, help="Stages that may use a model at once, over all machines: the number of GPUs.")
    ] = 1,
) -> None:
    """Make the work pool, the limit, the variables and the automation that the server lacks; safe to repeat."""
    import tasks  # noqa: F401 - sets Prefect's defaults first
    from flows.setup import in_memory_leases, setup_prefect

    for name, made in setup_prefect(devices):
        typer.echo(f"{'made ' if made else 'there'}  {name}")
    if in_memory_leases():
        typer.echo(
            "note: this server keeps leases of concurrency limits in memory, so its restart ends limited runs and "
            "leaves their slots taken; start it in this checkout, or with PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE="
            "prefect.server.concurrency.lease_storage.filesystem"
        )


@app.command(rich_help_panel=_SERVER)
def params(config: Config = None, overrides: Overrides = None) -> None:
    """Print a configuration as `prefect deployment run --params` takes it."""
    from grpo_pipeline.config import load_config

    typer.echo(json.dumps({"config": load_config(config, overrides or []).model_dump(mode="json")}))


def main() -> None:
    """Run the console program."""
    run()


if __name__ == "__main__":
    main()
