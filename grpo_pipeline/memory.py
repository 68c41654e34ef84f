"""Out of memory: how it looks, for every place that answers it with smaller batches."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU allocator raises a plain RuntimeError ("DefaultCPUAllocator: can't allocate memory").
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
