"""Building, finding, resuming and publishing artifacts on a local disk."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import ArtifactRef, ShardResult, StageSpec, Store
from grpo_pipeline.store.gc import plan_gc
from grpo_pipeline.store.shards import Staging, make_shard, merge_receipts
from grpo_pipeline.tables import from_rows


class CountingMake:
    def __init__(self, make, fail_at=None):
        self.make, self.fail_at, self.calls = make, fail_at, []

    def __call__(self, index):
        if index == self.fail_at:
            raise RuntimeError("killed")
        self.calls.append(index)
        return self.make(index)


def test_artifact_has_the_documented_layout_and_manifest(store, built, helpers):
    folder = Path(store.root, built.path)
    digits = built.fingerprint[:12]
    assert built.path == f"artifacts/checked-r0-{digits}"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "checked/part-00000.parquet",
        "checked/part-00001.parquet",
        "checked/part-00002.parquet",
        "manifest.json",
    ]
    manifest = built.manifest()
    assert manifest.tables["checked"].rows == 9
    assert [shard.rows for shard in manifest.tables["checked"].shards] == [3, 3, 3]
    assert manifest.counts == {"dropped": 0 + 1 + 2}
    assert manifest.tokens == 30
    assert manifest.receipt == {"usd": 1.5, "shards": [0, 1, 2]}
    assert manifest.seed == 7
    assert manifest.model is None
    assert sorted(manifest.timings.shards) == ["checked/00000", "checked/00001", "checked/00002"]
    assert list(Path(store.root, "staging").iterdir()) == []


def test_rows_are_sorted_by_problem_within_shards_and_read_back_in_order(built):
    problems = built.read("checked")["problem_id"].to_list()
    assert problems == [f"p{shard:02d}-{j}" for shard in range(3) for j in (1, 2, 3)]
    assert problems == sorted(problems)


def test_sorting_is_stable(store, helpers):
    def make(_):
        frame = helpers.rows(0, 4).with_columns(problem_id=pl.Series(["b", "a", "b", "a"]))
        return ShardResult({"checked": frame})

    rows = store.build(helpers.spec(), 1, make).read("checked")
    assert rows["rollout_id"].to_list() == ["r00-1", "r00-3", "r00-0", "r00-2"]


def test_existing_artifact_is_taken_without_making_anything(store, built, helpers):
    make = CountingMake(helpers.make)
    assert store.build(helpers.spec(), 3, make) == built
    assert make.calls == []


@pytest.mark.parametrize(
    "other",
    [
        {"stage": "checked_again"},
        {"version": 2},
        {"round": 1},
        {"config": {"a": 1}},
        {"seed": 8},
        {"parents": "built"},
    ],
)
def test_whatever_determines_content_changes_the_fingerprint(store, built, other):
    base = {"stage": "checked", "version": 1, "round": 0, "config": {}, "parents": (), "seed": 7}
    assert StageSpec(**base).fingerprint == built.fingerprint
    if other.get("parents"):
        other = {"parents": (built,)}
    changed = StageSpec(**{**base, **other})
    assert changed.fingerprint != built.fingerprint
    assert store.find(changed) is None


def test_fingerprint_is_blind_to_key_order_and_place(tmp_path, helpers):
    assert helpers.spec(a=1, b=(2,)).fingerprint == helpers.spec(b=[2], a=1).fingerprint
    one = Store(tmp_path / "one").build(helpers.spec(), 1, helpers.make)
    two = Store(tmp_path / "two").build(helpers.spec(), 1, helpers.make)
    assert helpers.spec(parents=(one,)).fingerprint == helpers.spec(parents=(two,)).fingerprint


def test_fingerprint_of_a_known_spec_never_changes():
    # printf of [1,"checked",1,0,{"a":1},[],7] piped to sha256sum; the first 1 is SCHEMA_VERSION.
    expected = "bf435f6a7a58fc049efcfecf0c243897a888f0590ac465263562a15896273cb0"
    spec = StageSpec("checked", 1, 0, {"a": 1}, (), 7)
    assert spec.fingerprint == expected


@pytest.mark.parametrize("config", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}])
def test_config_that_is_not_json_is_refused(config):
    with pytest.raises(ValueError, match="not plain JSON"):
        _ = StageSpec("checked", 1, 0, config, (), 0).fingerprint


@pytest.mark.parametrize("stage", ["", "../up", "A", "a-b", "a/b"])
def test_stage_names_cannot_leave_the_root(stage):
    with pytest.raises(ValueError, match="stage"):
        StageSpec(stage, 1, 0, {}, (), 0)


def test_failed_build_keeps_its_finished_shards_and_is_invisible(store, helpers):
    broken = CountingMake(helpers.make, fail_at=2)
    with pytest.raises(RuntimeError, match="killed"):
        store.build(helpers.spec(), 4, broken)
    assert store.find(helpers.spec()) is None
    assert store.artifacts() == []
    again = CountingMake(helpers.make)
    ref = store.build(helpers.spec(), 4, again)
    assert broken.calls == [0, 1]
    assert again.calls == [2, 3]
    undisturbed = Store(store.root + "-2").build(helpers.spec(), 4, helpers.make)
    assert ref.read("checked").equals(undisturbed.read("checked"))
    assert ref.manifest().tables == undisturbed.manifest().tables
    assert ref.manifest().counts == undisturbed.manifest().counts


def test_torn_shard_in_staging_is_made_again(store, helpers):
    with pytest.raises(RuntimeError):
        store.build(helpers.spec(), 3, CountingMake(helpers.make, fail_at=2))
    torn = next(Path(store.root).glob("staging/*/data/checked/part-00001.parquet"))
    torn.write_bytes(torn.read_bytes()[:-10])
    again = CountingMake(helpers.make)
    store.build(helpers.spec(), 3, again)
    assert again.calls == [1, 2]


def test_shards_of_another_cut_are_not_mixed_in(store, helpers):
    with pytest.raises(RuntimeError):
        store.build(helpers.spec(), ["ab", "cd", "ef"], CountingMake(helpers.make, fail_at=2))
    again = CountingMake(helpers.make)
    ref = store.build(helpers.spec(), ["abc", "def"], again)
    assert again.calls == [0, 1]
    assert ref.manifest().tables["checked"].rows == 6


def test_workers_write_their_shards_themselves(store, built, helpers):
    with ThreadPoolExecutor(3) as pool:
        ref = store.build_by(
            helpers.spec(pool=1),
            6,
            lambda staging, todo: pool.map(partial(make_shard, staging, helpers.make), todo),
        )
    alone = store.build(helpers.spec(pool=0), 6, helpers.make)
    assert ref.read("checked").equals(alone.read("checked"))
    staging = Staging(store.root, "f" * 64, "staging/x/data")
    assert pickle.loads(pickle.dumps(staging)) == staging


def test_a_pool_that_loses_shards_is_found_out(store, helpers):
    with pytest.raises(RuntimeError, match=r"without shards \[0, 1\]"):
        store.build_by(helpers.spec(), 2, lambda staging, todo: [])


def test_a_stage_may_yield_several_tables_and_open_columns(store, helpers):
    def make(shard):
        metrics = from_rows([{"step": shard, "round": 0, "stage": "x", f"m{shard}": 0.5}], "metrics")
        return ShardResult({"checked": helpers.rows(shard), "metrics": metrics})

    ref = store.build(helpers.spec(), 2, make)
    assert ref.tables == ("checked", "metrics")
    assert ref.read("metrics").to_dicts() == [
        {"step": 0, "round": 0, "stage": "x", "m0": 0.5, "m1": None},
        {"step": 1, "round": 0, "stage": "x", "m0": None, "m1": 0.5},
    ]
    with pytest.raises(UserError, match=r"no table 'steps'.*checked, metrics"):
        ref.scan("steps")


def test_frame_that_is_not_its_table_is_refused_by_name(store, helpers):
    frame = helpers.rows(0).with_columns(verdict=pl.lit(1))
    with pytest.raises(UserError, match=r"part-00000.parquet.*table checked, column verdict: expected string"):
        store.build(helpers.spec(), 1, lambda _: ShardResult({"checked": frame}))


def test_trainers_write_and_overwrite_shards_and_keep_a_workdir(store, helpers):
    spec = helpers.spec(stage="train")
    with pytest.raises(ZeroDivisionError), store.open_build(spec) as build:
        build.workdir.joinpath("checkpoint").write_text("step 1")
        build.model_dir.joinpath("junk.bin").write_bytes(b"half a model")
        build.write("checked", "step-2", helpers.rows(2))
        build.write("checked", "step-10", helpers.rows(10))
        _ = 1 / 0
    with store.open_build(spec) as build:
        assert build.ref is None
        assert build.workdir.joinpath("checkpoint").read_text() == "step 1"
        assert list(build.model_dir.iterdir()) == []
        assert build.has("checked", "step-2")
        assert not build.has("checked", "step-3")
        build.write("checked", "step-2", helpers.rows(3, n=1))
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        ref = build.finish(counts={"skipped": 1}, tokens=5, receipt={"gpu": 2}, content_id="c0ffee")
    assert build.ref == ref == store.find(spec)
    assert ref.read("checked")["rollout_id"].to_list() == ["r03-0", *(f"r10-{j}" for j in (2, 1, 0))]
    manifest = ref.manifest()
    assert (manifest.counts, manifest.tokens, manifest.receipt) == ({"skipped": 1}, 5, {"gpu": 2})
    assert manifest.model.content_id == "c0ffee"
    assert [file.file for file in manifest.model.files] == ["model/model.safetensors"]
    assert ref.model_path().joinpath("model.safetensors").read_bytes() == b"weights"
    assert not build.workdir.exists()


def test_model_needs_a_content_id_and_absence_is_said(store, built, helpers):
    spec = helpers.spec(stage="train")
    with pytest.raises(ValueError, match="content_id"), store.open_build(spec) as build:
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        build.finish()
    with pytest.raises(UserError, match="holds no model"):
        built.model_path()


def test_build_that_forgets_to_finish_is_an_error(store, helpers):
    with pytest.raises(RuntimeError, match="without finish"), store.open_build(helpers.spec()):
        pass


def test_killed_between_manifest_and_rename_is_published_as_it_is(store, helpers, monkeypatch):
    from grpo_pipeline.store.filesystem import LocalFiles

    def killed(self, source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            store.build(helpers.spec(), 2, helpers.make)
    assert store.find(helpers.spec()) is None
    make = CountingMake(helpers.make)
    ref = store.build(helpers.spec(), 2, make)
    assert make.calls == []
    assert ref.read("checked").height == 6


def test_second_writer_waits_and_takes_the_first_ones_result(store, helpers):
    started = threading.Event()
    calls = []

    def slow(index):
        calls.append(index)
        started.set()
        time.sleep(0.05)
        return helpers.make(index)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.build, helpers.spec(), 3, slow)
        started.wait()
        second = pool.submit(Store(store.root).build, helpers.spec(), 3, slow)
        assert first.result() == second.result()
    assert calls == [0, 1, 2]


def test_second_process_waits_too(store, helpers):
    program = """
        import sys, time
        from grpo_pipeline.store import Store
        sys.path.insert(0, sys.argv[2])
        from conftest import checked_spec, make_checked
        def make(i):
            print(i, flush=True)
            time.sleep(0.3)
            return make_checked(i)
        Store(sys.argv[1]).build(checked_spec(), 2, make)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), store.root, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"0\n"
        make = CountingMake(helpers.make)
        assert store.build(helpers.spec(), 2, make).read("checked").height == 6
        assert make.calls == []
        assert child.wait() == 0


def test_references_pass_through_json(built):
    assert ArtifactRef.model_validate_json(built.model_dump_json()) == built
    assert len(built.model_dump_json()) < 500


def test_run_can_be_moved(store, built, tmp_path, helpers):
    Path(store.root).rename(tmp_path / "elsewhere")
    moved = Store(tmp_path / "elsewhere").find(helpers.spec())
    assert moved.read("checked").height == 9
    with pytest.raises(UserError, match="gone"):
        built.read("checked")


def test_clock_that_jumps_back_changes_nothing(store, built, helpers):
    path = Path(store.root, built.path, "manifest.json")
    raw = json.loads(path.read_text())
    raw["created"] = "2099-01-01T00:00:00+00:00"
    path.write_text(json.dumps(raw))
    for file in Path(store.root).rglob("*"):
        os.utime(file, (4e9, 4e9))
    assert store.find(helpers.spec()) == built
    later = store.build(helpers.spec(round=1, parents=(built,)), 1, helpers.make)
    assert store.artifacts() == [built, later]


def test_artifacts_are_listed_by_round_stage_and_fingerprint(store, helpers):
    a = store.build(helpers.spec(round=1, stage="b"), 1, helpers.make)
    b = store.build(helpers.spec(round=0, stage="z"), 1, helpers.make)
    c = store.build(helpers.spec(round=1, stage="a"), 1, helpers.make)
    Path(store.root, "artifacts", "notes.txt").write_text("mine")
    Path(store.root, "artifacts", "half-r0-0123456789ab").mkdir()
    assert store.artifacts() == [b, c, a]
    assert store.artifacts(stage="a") == [c]
    assert store.artifacts(round=1) == [c, a]


def test_find_takes_milliseconds_with_many_artifacts(store, helpers):
    for number in range(12):
        ref = store.build(helpers.spec(round=number), 1, helpers.make)
    spec = helpers.spec(round=11)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        assert Store(store.root).find(spec) == ref
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005


def test_row_groups_let_scans_prune(tmp_path, helpers):
    def make(_):
        return ShardResult({"checked": helpers.rows(0, 9)})

    ref = Store(tmp_path, rows_per_group=3).build(helpers.spec(), 1, make)
    metadata = pq.read_metadata(Path(tmp_path, ref.path, "checked/part-00000.parquet"))
    column = metadata.schema.names.index("problem_id")
    ranges = [
        (metadata.row_group(i).column(column).statistics.min, metadata.row_group(i).column(column).statistics.max)
        for i in range(metadata.num_row_groups)
    ]
    assert ranges == [("p00-1", "p00-3"), ("p00-4", "p00-6"), ("p00-7", "p00-9")]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_merge_receipts_by_hand():
    one = {"usd": 1, "list": [1], "deep": {"n": 2, "who": "a"}, "model": "m", "flag": True}
    two = {"usd": 0.5, "list": [2], "deep": {"n": 3, "who": "b"}, "model": "m", "flag": True, "new": 1}
    assert merge_receipts([one, two]) == {
        "usd": 1.5,
        "list": [1, 2],
        "deep": {"n": 5, "who": ["a", "b"]},
        "model": "m",
        "flag": True,
        "new": 1,
    }


@pytest.mark.parametrize("broken", ["plan.json", "done/00000.json"])
@pytest.mark.parametrize("content", ["", "{", '{"round": "x"}'])
def test_a_broken_note_of_a_killed_build_vouches_for_nothing(store, helpers, broken, content):
    with pytest.raises(RuntimeError, match="killed"):
        store.build(helpers.spec(), 3, CountingMake(helpers.make, fail_at=2))
    staging = Path(store.root, "staging", helpers.spec().fingerprint)
    (staging / broken).write_text(content)
    assert plan_gc(store.root, keep_last=1).remove == ()
    again = CountingMake(helpers.make)
    ref = store.build(helpers.spec(), 3, again)
    assert again.calls == ([0, 1, 2] if broken == "plan.json" else [0, 2])
    assert ref.manifest().tables["checked"].rows == 9


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_are_readable_as_the_umask_says(store, helpers, umask, mode):
    before = os.umask(umask)
    try:
        ref = store.build(helpers.spec(), 1, helpers.make)
        with store.open_build(helpers.spec(stage="policy")) as build:
            save_file({"weight": torch.zeros(2)}, build.model_dir / "model.safetensors")
            build.finish(content_id="c")
        store.files.write("summary.json", b"{}")
        store.files.write("summary.json", b"{ }")
    finally:
        os.umask(before)
    written = {path: path.stat().st_mode & 0o777 for path in Path(store.root).rglob("*") if path.is_file()}
    kept = {path: found for path, found in written.items() if path.suffix in (".json", ".parquet", ".safetensors")}
    assert {path.name for path in kept} >= {"summary.json", "manifest.json", "model.safetensors"}
    assert set(kept.values()) == {mode}
    assert any(path.is_relative_to(Path(store.root, ref.path)) and path.suffix == ".parquet" for path in kept)
