"""Answers of Ray's actors, with the errors that the code there raised."""

from typing import Any

from grpo_pipeline.errors import UserError


def answer_of(reference: Any) -> Any:
    """Wait for an answer.

    Raises:
        UserError: As the code there raised it.
        ray.exceptions.RayTaskError: It raised anything else; the traceback is in the message.
        ray.exceptions.RayActorError: Its process is gone.
    """
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
