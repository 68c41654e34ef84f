"""A store behind an fsspec URL: no rename, the manifest written last decides."""

import fsspec
import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import Store
from grpo_pipeline.store.filesystem import RemoteFiles
from grpo_pipeline.store.gc import collect, plan_gc
from grpo_pipeline.store.verify import verify
from grpo_pipeline.tables import scan


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = f"memory://bucket-{tmp_path.name}/runs/a"
    yield Store(root)
    fsspec.filesystem("memory").store.clear()


def test_build_find_scan_and_verify(remote, helpers, tmp_path):
    import polars as pl

    ref = remote.build(helpers.spec(), 3, helpers.make)
    assert Store(remote.root).find(helpers.spec()) == ref
    local = Store(tmp_path / "local").build(helpers.spec(), 3, helpers.make)
    assert ref.read("checked").equals(local.read("checked"))
    assert ref.manifest().tables == local.manifest().tables
    one = scan("checked", remote.root).filter(pl.col("problem_id") == "p01-2").collect()
    assert one["rollout_id"].to_list() == ["r01-1"]
    assert verify(remote.root) == []
    assert remote.files.children("staging") == []


def test_killed_build_is_invisible_and_goes_on(remote, helpers):
    def dying(index):
        if index == 2:
            raise KeyboardInterrupt
        return helpers.make(index)

    with pytest.raises(KeyboardInterrupt):
        remote.build(helpers.spec(), 4, dying)
    assert remote.find(helpers.spec()) is None
    assert remote.artifacts() == []
    assert verify(remote.root) == []
    calls = []

    def make(index):
        calls.append(index)
        return helpers.make(index)

    assert remote.build(helpers.spec(), 4, make).read("checked").height == 12
    assert calls == [2, 3]


def test_nothing_is_finished_before_the_manifest(remote, helpers, monkeypatch):
    written = []
    real = RemoteFiles.write

    def write(self, path, data):
        written.append(path)
        real(self, path, data)

    monkeypatch.setattr(RemoteFiles, "write", write)
    ref = remote.build(helpers.spec(), 2, helpers.make)
    assert written[-1] == f"{ref.path}/manifest.json"


def test_other_cut_leaves_nothing_behind(remote, helpers):
    def dying(index):
        if index == 2:
            raise KeyboardInterrupt
        return helpers.make(index)

    with pytest.raises(KeyboardInterrupt):
        remote.build(helpers.spec(), 4, dying)
    assert remote.build(helpers.spec(), 1, helpers.make).read("checked").height == 3
    assert verify(remote.root) == []


def test_models_go_up_and_come_down_once(remote, helpers, monkeypatch):
    with remote.open_build(helpers.spec(stage="train")) as build:
        (build.model_dir / "sub").mkdir()
        (build.model_dir / "sub" / "model.safetensors").write_bytes(b"weights")
        build.workdir.joinpath("checkpoint").write_text("1")
        ref = build.finish(content_id="abc")
    assert not build.workdir.exists()
    folder = ref.model_path()
    assert (folder / "sub" / "model.safetensors").read_bytes() == b"weights"
    fetched = []
    real = RemoteFiles.download
    monkeypatch.setattr(RemoteFiles, "download", lambda *args: (fetched.append(args[1]), real(*args)))
    assert ref.model_path() == folder
    assert fetched == []
    (folder / "sub" / "model.safetensors").write_bytes(b"WEIGHTS")  # damaged in the cache
    assert (ref.model_path() / "sub" / "model.safetensors").read_bytes() == b"weights"
    assert fetched == [f"{ref.path}/model/sub/model.safetensors"]
    remote.files.write(f"{ref.path}/model/sub/model.safetensors", b"WEIGHTS")  # damaged in the store
    (folder / "sub" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="sha256"):
        ref.model_path()
    assert not (folder / "sub" / "model.safetensors").exists()
    assert [file.file for file in ref.manifest().model.files] == ["model/sub/model.safetensors"]


def test_damage_is_found_and_gc_works(remote, helpers):
    old = remote.build(helpers.spec(round=0), 1, helpers.make)
    new = remote.build(helpers.spec(round=1), 1, helpers.make)
    with pytest.raises(ZeroDivisionError):
        remote.build(helpers.spec(round=0, x=1), 2, lambda i: helpers.make(i) if i == 0 else 1 / 0)
    collect(plan_gc(remote.root, 1))
    assert remote.artifacts() == [new]
    assert [path for path in remote.files.walk("") if not path.startswith(new.path)] == []
    path = f"{new.path}/checked/part-00000.parquet"
    data = bytearray(remote.files.open(path).read())
    data[50] ^= 1
    remote.files.write(path, bytes(data))
    with pytest.raises(UserError, match="sha256"):
        new.read("checked")
    assert [(f.kind, f.path) for f in verify(remote.root)] == [("damaged", path)]
    assert old.path != new.path
