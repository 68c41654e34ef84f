"""Check whole columns: order kept, equal pairs compared once, slow ones in parallel worker processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from grpo_pipeline.answers.checker import TIME_LIMIT, check_gold, compare_spans, find_span
from grpo_pipeline.answers.verdicts import Check, Mode, NeedsWorker


def check_many(
    golds: Sequence[str],
    texts: Sequence[str],
    mode: Mode | Sequence[Mode] = "solution",
    *,
    workers: int | None = None,
    progress: bool = False,
    time_limit: float = TIME_LIMIT,
) -> list[Check]:
    """Check texts[k] against golds[k] for every k.

    Args:
        golds: gold answers, one a text.
        texts: solutions or answers.
        mode: one mode for all, or one a text.
        workers: worker processes for the comparisons that need sympy; default: as many as there are cores, at most 4.
        progress: show a progress bar on stderr.
        time_limit: seconds for one comparison that needs a worker.

    Returns:
        One `Check` a text, in the same order. `count_reasons` counts them.

    Raises:
        ValueError: for columns of different lengths or an unknown mode.
    """
    modes: Sequence[Mode] = [mode] * len(texts) if isinstance(mode, str) else mode  # type: ignore[list-item]
    if not len(golds) == len(texts) == len(modes):
        raise ValueError(f"{len(golds)} golds, {len(texts)} texts and {len(modes)} modes are not the same number")
    unknown = set(modes) - {"answer", "solution"}
    if unknown:
        raise ValueError(f"unknown mode {sorted(unknown)[0]!r}; it is 'answer' or 'solution'")
    known: dict[tuple[str, str], Check | None] = {}
    problems: dict[str, str | None] = {}
    results: list[Check | None] = [None] * len(texts)
    waiting: dict[tuple[str, str], list[int]] = {}
    with _shown(progress, len(texts)) as advance:
        for k, (gold, text, one_mode) in enumerate(zip(golds, texts, modes, strict=True)):
            gold, span = gold.strip(), None  # noqa: PLW2901
            span, reason = find_span(gold, text, one_mode)
            if gold not in problems:
                problems[gold] = check_gold(gold)
            problem = problems[gold]
            if problem is not None:
                results[k] = Check("bad_gold", span, problem)
            elif span is None:
                results[k] = Check("no_answer", None, reason)
            else:
                key = (gold, span)
                if key not in known:
                    try:
                        known[key] = compare_spans(gold, span)
                    except NeedsWorker:
                        known[key] = None
                results[k] = known[key]
                if results[k] is None:
                    waiting.setdefault(key, []).append(k)
                    continue
            advance(1)
        for key, check in _in_workers(waiting, workers, time_limit):
            for k in waiting[key]:
                results[k] = check
            advance(len(waiting[key]))
    return [check for check in results if check is not None]


def _in_workers(
    pairs: Iterable[tuple[str, str]], workers: int | None, time_limit: float
) -> Iterator[tuple[tuple[str, str], Check]]:
    keys = list(pairs)
    if not keys:
        return
    from grpo_pipeline.answers.pool import Pool, shared_pool

    pool = shared_pool() if workers is None else Pool(workers)
    try:
        with ThreadPoolExecutor(pool.size, thread_name_prefix="answer-checks") as threads:
            yield from zip(keys, threads.map(lambda key: pool.compare(*key, time_limit), keys), strict=True)
    finally:
        if workers is not None:
            pool.close()


@contextmanager
def _shown(progress: bool, total: int) -> Iterator[Callable[[int], None]]:  # noqa: FBT001
    """A callable that advances the bar, or does nothing."""
    if not progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("checking answers", total=total)
        yield lambda count: bar.advance(task, count)
