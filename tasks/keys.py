"""Keys of what the flows publish: the same for the same thing of the same run, so that versions line up in the UI."""

import re


def artifact_key(run: str, what: str) -> str:
    """A key of a Prefect artifact, which takes lower case letters, digits and dashes alone.

    Args:
        run: The run's name.
        what: What is shown: a stage's name, "rounds", "learning-curves".
    """
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{what}".lower()).strip("-")
