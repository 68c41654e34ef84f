"""Prefect tasks: one thin wrapper a stage, which publishes what a person wants to see.

A task takes the run's configuration and references to artifacts, and gives a reference: never a data frame
or a model, since Prefect walks through what a task is given.
"""

import os

# Defaults that hold where the user has set nothing. They must stand before prefect is imported: without the
# first, a start without network tries telemetry and prints an error; the default limit of 20 s for the
# temporary server is too short on a busy machine.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")

HEARTBEAT_SECONDS = 30
"""Seconds between signs of life of a flow run (Prefect's shortest); `setup-prefect` makes use of them."""

os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", str(HEARTBEAT_SECONDS))
