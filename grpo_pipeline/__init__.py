"""From problems to a better policy: step labels, process reward models and GRPO over Parquet.

Importing this package loads neither torch, transformers nor vllm; the modules that need them import them
when they are used. See docs/architecture.md for the rooms and the way the data goes.
"""

__version__ = "0.1.0"
