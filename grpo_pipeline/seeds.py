"""One seed for every random choice, derived from what the choice is for.

A draw depends on its *address* (run seed, stage, round, problem, index), never on the order in which
things happen, so a stage that is killed and resumed, or run on other workers, samples the same.
"""

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63) from an address: it fits int64 (Parquet, torch and vLLM alike).

    Args:
        parts: What the draw is for, from general to particular, e.g. ``(run_seed, "rollouts", round,
            problem_id, group_index)``. Types matter: ``1`` and ``"1"`` give different seeds.
    """
    return int.from_bytes(_digest(parts, 8), "big") >> 1


def derive_id(*parts: str | int) -> str:
    """A stable identifier of 16 hexadecimal digits from an address (see `derive_seed`)."""
    return _digest(parts, 8).hex()


def _digest(parts: tuple[str | int, ...], size: int) -> bytes:
    # repr of str and int is unambiguous, so no two addresses share an encoding.
    return hashlib.blake2b(repr(parts).encode(), digest_size=size).digest()
