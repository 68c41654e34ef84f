"""Workers that are threads of this process and share one model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from grpo_pipeline.store.shards import Staging
from grpo_pipeline.workers.maker import ShardMaker, opened


def run_in_threads(maker: ShardMaker, count: int, staging: Staging, todo: Sequence[int]) -> Iterator[None]:
    """Make shards in `count` threads, yielding as each is done; with nothing to do nothing is opened.

    A local model computes for one thread at a time: while one samples, another checks answers and writes. Requests to
    a server go out from all of them. The first error ends it once the shards at work are written.
    """
    if not todo:
        return
    with opened(maker, staging) as make:
        if count == 1:
            for index in todo:
                make(index)
                yield
            return
        pool = ThreadPoolExecutor(min(count, len(todo)), thread_name_prefix="shards")
        try:
            for future in as_completed([pool.submit(make, index) for index in todo]):
                yield future.result()
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            # Whoever cancels a stage gives it seconds, and a shard may take minutes.
            pool.shutdown(wait=False, cancel_futures=True)
