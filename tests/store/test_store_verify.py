import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import ShardResult
from grpo_pipeline.store.verify import verify


def findings(store):
    return [(finding.kind, finding.path) for finding in verify(store.root)]


def edit(store, ref, change):
    path = Path(store.root, ref.path, "manifest.json")
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_a_sound_run_has_no_findings(store, built, helpers):
    with store.open_build(helpers.spec(stage="train", parents=(built,))) as build:
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        build.finish(content_id="x")
    assert verify(store.root) == []


@pytest.mark.parametrize("at", [5, 300, -20])
def test_any_flipped_byte_is_found(store, built, at):
    path = Path(store.root, built.path, "checked/part-00002.parquet")
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
    assert findings(store) == [("damaged", f"{built.path}/checked/part-00002.parquet")]


def test_damaged_model_files_are_found(store, helpers):
    with store.open_build(helpers.spec(stage="train")) as build:
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        ref = build.finish(content_id="x")
    Path(store.root, ref.path, "model/model.safetensors").write_bytes(b"Weights")
    assert findings(store) == [("damaged", f"{ref.path}/model/model.safetensors")]


def test_files_that_the_manifest_does_not_know(store, built):
    Path(store.root, built.path, "checked/part-00009.parquet").write_bytes(b"")
    Path(store.root, "artifacts/notes.txt").write_text("mine")
    assert findings(store) == [
        ("unknown file", f"{built.path}/checked/part-00009.parquet"),
        ("unknown file", "artifacts/notes.txt"),
    ]


def test_double_keys_across_shards_are_found(store, helpers):
    ref = store.build(helpers.spec(), 2, lambda _: ShardResult({"checked": helpers.rows(0)}))
    (finding,) = verify(store.root)
    assert (finding.kind, finding.path) == ("key", ref.path)
    assert "6 rows share a key" in finding.message


def test_changed_config_no_longer_fits_the_fingerprint(store, built):
    edit(store, built, lambda raw: raw["config"].update(temperature=0))
    assert findings(store) == [("fingerprint", built.path)]


def test_missing_parents_unfinished_folders_and_broken_manifests(store, built, helpers):
    child = store.build(helpers.spec(round=1, parents=(built,)), 1, helpers.make)
    Path(store.root, built.path, "manifest.json").unlink()
    assert findings(store) == [("manifest", built.path), ("parent", child.path)]
    Path(store.root, child.path, "manifest.json").write_text("[]")
    assert findings(store) == [("manifest", built.path), ("manifest", child.path)]


def test_rows_that_do_not_add_up(store, built):
    edit(store, built, lambda raw: raw["tables"]["checked"].update(rows=10))
    assert findings(store) == [("rows", built.path)]


def test_a_shard_of_other_types_is_found(store, built):
    import hashlib

    path = Path(store.root, built.path, "checked/part-00000.parquet")
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([name.replace("reason", "why") for name in table.column_names]), path)

    def change(raw):
        data = path.read_bytes()
        raw["tables"]["checked"]["shards"][0].update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    edit(store, built, change)
    assert findings(store) == [("schema", f"{built.path}/checked/part-00000.parquet")]


def test_no_run(tmp_path):
    with pytest.raises(UserError, match="no run here"):
        verify(tmp_path)
