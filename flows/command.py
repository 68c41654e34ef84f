"""How a flow is run from a shell: ``--config FILE --set KEY=VALUE``, one message for a user's mistake."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect.exceptions import Abort

from flows.ready import make_ready
from flows.server import require_server
from grpo_pipeline.config import RunConfig, load_config
from grpo_pipeline.errors import ProcessDiedError, UserError
from grpo_pipeline.interrupts import EXIT_CODE, catch_interrupts
from tasks.quiet import quiet_user_errors


def main(flow: Callable[[RunConfig], Any], arguments: Sequence[str] | None = None, *, fast: Sequence[str] = ()) -> None:
    """Parse the arguments, validate the configuration and run the flow.

    Exits with 2 for a user's mistake, with 1 where a process died, with 130 after Ctrl-C.

    Args:
        flow: What to run.
        arguments: The command line; None takes the process's.
        fast: Overrides that ``--fast`` stands for, before those of ``--set``; without any there is no such option.
    """
    parser = argparse.ArgumentParser(description=(flow.__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--config", type=Path, help="TOML file; the defaults of a run where it is left out")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override, e.g. policy.optimizer.lr=1e-5"
    )
    if fast:
        parser.add_argument("--fast", action="store_true", help=f"in small: {', '.join(fast)}")
    options = parser.parse_args(arguments)
    overrides = [*(fast if fast and options.fast else ()), *options.set]
    catch_interrupts()
    quiet_user_errors()
    name = str(getattr(flow, "name", "JOB"))
    try:
        config = load_config(options.config, overrides)
        make_ready(config, name)
        require_server(name)
        run(flow, config)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except ProcessDiedError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)


def run(flow: Callable[[RunConfig], Any], config: RunConfig) -> None:
    """Run a flow; exits with 1 and a message where the server has ended the run, as for a cancelled one."""
    try:
        flow(config)
    except Abort as ending:
        sys.stderr.write(f"{ending}\n")
        sys.exit(1)
