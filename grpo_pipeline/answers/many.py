"""Check whole columns: order kept, equal pairs compared once, slow ones in parallel worker processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from grpo_pipeline.answers.checker import TIME_LIMIT, check_gold, compare_spans, find_span
from grpo_pipeline.answers.verdicts import Check, Mode, NeedsWorker

Pair = tuple[str, str]  # the gold answer and the extracted span


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
        workers: worker processes for comparisons that need sympy; default: one a core, at most 4.
        progress: show a progress bar on stderr.
        time_limit: see `check`.

    Returns:
        One `Check` a text, in the same order. `count_reasons` counts them.

    Raises:
        ValueError: for columns of different lengths or an unknown mode.
    """
    modes: Sequence[Mode] = [mode] * len(texts) if isinstance(mode, str) else mode
    if not len(golds) == len(texts) == len(modes):
        raise ValueError(f"{len(golds)} golds, {len(texts)} texts and {len(modes)} modes are not the same number")
    unknown = set(modes) - {"answer", "solution"}
    if unknown:
        raise ValueError(f"unknown mode {sorted(unknown)[0]!r}; it is 'answer' or 'solution'")
    columns = _Columns(golds, texts, modes)
    with _shown(progress, len(texts)) as advance:
        waiting = columns.check_in_process(advance)
        for pair, check in _in_workers(waiting, workers, time_limit):
            for k in waiting[pair]:
                columns.results[k] = check
            advance(len(waiting[pair]))
    return [check for check in columns.results if check is not None]


class _Columns:
    """The columns, the results so far, and what is already known about golds and pairs."""

    def __init__(self, golds: Sequence[str], texts: Sequence[str], modes: Sequence[Mode]) -> None:
        self.rows = list(zip(golds, texts, modes, strict=True))
        self.results: list[Check | None] = [None] * len(self.rows)
        self.known: dict[tuple[str, str], Check | None] = {}
        self.problems: dict[str, str | None] = {}

    def check_in_process(self, advance: Callable[[int], None]) -> dict[Pair, list[int]]:
        """Decide all rows but those that need a worker; gives these by (gold, span)."""
        waiting: dict[Pair, list[int]] = {}
        for k, (raw_gold, text, mode) in enumerate(self.rows):
            gold = raw_gold.strip()
            span, reason = find_span(gold, text, mode)
            if gold not in self.problems:
                self.problems[gold] = check_gold(gold)
            problem = self.problems[gold]
            if problem is not None:
                self.results[k] = Check("bad_gold", span, problem)
            elif span is None:
                self.results[k] = Check("no_answer", None, reason)
            else:
                self.results[k] = self.compare_once((gold, span))
                if self.results[k] is None:
                    waiting.setdefault((gold, span), []).append(k)
                    continue
            advance(1)
        return waiting

    def compare_once(self, pair: Pair) -> Check | None:
        """The check of a pair, None where a worker is needed. Equal pairs are compared once."""
        if pair not in self.known:
            try:
                self.known[pair] = compare_spans(*pair)
            except NeedsWorker:
                self.known[pair] = None
        return self.known[pair]


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
            yield from zip(keys, threads.map(lambda key: pool.compare(key[0], key[1], time_limit), keys), strict=True)
    finally:
        if workers is not None:
            pool.close()


@contextmanager
def _shown(progress: bool, total: int) -> Iterator[Callable[[int], None]]:
    """A callable that advances the bar, or does nothing."""
    if not progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("checking answers", total=total)
        yield lambda count: bar.advance(task, count)
