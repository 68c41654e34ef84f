"""Full disks, read-only stores, damaged files, manifests that lie: each a clear message, nothing lost."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import SCHEMA_VERSION
from grpo_pipeline.store import ArtifactRef, Store, artifact
from grpo_pipeline.store.manifest import inside
from grpo_pipeline.store.verify import verify
from grpo_pipeline.tables import scan


def flip_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "disk full while writing"),
        (errno.EDQUOT, "disk full while writing"),
        (errno.EROFS, "not allowed while writing"),
        (errno.EACCES, "not allowed while writing"),
    ],
)
def test_disk_trouble_is_a_clear_message_and_the_build_goes_on_later(store, helpers, monkeypatch, code, message):
    calls = []

    def make(index):
        calls.append(index)
        return helpers.make(index)

    real = os.fsync
    written = 0

    def fsync(handle):
        nonlocal written
        written += 1
        if written > 8:
            raise OSError(code, os.strerror(code))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(UserError, match=message) as caught:
            store.build(helpers.spec(), 6, make)
    assert store.root in str(caught.value)
    assert "finished shards are kept" in str(caught.value)
    assert list(Path(store.root).rglob("*.tmp")) == []
    before = len(calls)
    assert 1 <= before < 6
    assert store.build(helpers.spec(), 6, make).manifest().tables["checked"].rows == 18
    # Only the shard that met the full disk is made twice.
    assert len(calls) == 6 + 1


def test_really_full_disk(tmp_path, helpers):
    """A tmpfs of 300 kB in a mount namespace of its own."""
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from conftest import checked_spec, checked_rows
        import polars as pl, random
        from pathlib import Path
        from grpo_pipeline.errors import UserError
        from grpo_pipeline.store import ShardResult, Store
        def make(i):
            noise = random.Random(i)
            answers = pl.Series([noise.randbytes(4000).hex() for _ in range(8)])
            return ShardResult({{"checked": checked_rows(i, 8).with_columns(answer=answers)}})
        ballast = Path("small/ballast")
        ballast.write_bytes(bytes(150_000))
        store = Store("small/run")
        try:
            store.build(checked_spec(), 5, make)
        except UserError as error:
            print(error)
        kept = len(list(Path("small/run").rglob("part-*.parquet")))
        assert 1 <= kept < 5, kept
        ballast.unlink()
        print(store.build(checked_spec(), 5, make).read("checked").height)
    """
    (tmp_path / "small").mkdir()
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    mount = "mount -t tmpfs -o size=300k tmpfs small"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    root = str(Path(__file__).parents[2])
    command = f"{mount} && {sys.executable} program.py"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    message, rows = done.stdout.splitlines()
    assert message.startswith("disk full while writing")
    assert rows == "40"


def test_a_disk_that_checkpoints_models_or_the_ledger_fill_up(tmp_path):
    """Libraries say it in words of their own; a person reads one message, and the shards stay."""
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from conftest import checked_spec, checked_rows
        from pathlib import Path
        import numpy as np
        from safetensors.numpy import save_file
        from grpo_pipeline.errors import UserError
        from grpo_pipeline.labelling.ledger import Draw, Ledger, PrefixKey
        from grpo_pipeline.store import Store
        def safetensors(build):
            save_file({{"w": np.zeros(200_000, np.uint8)}}, build.workdir / "checkpoint.safetensors")
        def plain(build):
            (build.workdir / "state.json").write_bytes(bytes(200_000))
        def ledger(build):
            with Ledger(Path("small/run/ledger")) as found:
                draw = Draw(0, "r", "p", 0, 1, "x" * 200_000, "stop", 0)
                found.add(PrefixKey("c", "p", "s"), [draw])
        store = Store("small/run")
        for round, fill in enumerate((safetensors, plain, ledger)):
            Path("small/ballast").write_bytes(bytes(100_000))
            spec = checked_spec(round=round)
            try:
                with store.open_build(spec) as build:
                    build.write("checked", 0, checked_rows(0))
                    fill(build)
            except UserError as error:
                print(error)
            Path("small/ballast").unlink()  # the user makes room
            with store.open_build(spec) as build:
                assert build.has("checked", 0)
                print(build.finish().read("checked").height)
    """
    (tmp_path / "small").mkdir()
    output = run_mounted(tmp_path, "mount -t tmpfs -o size=300k tmpfs small", program)
    lines = output.splitlines()
    assert len(lines) == 6
    for round, (message, rows) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        assert message.startswith(f"disk full while checked, round {round}, was made in")
        assert "the last checkpoint are kept" in message
        assert rows == "3"


def test_read_only_store_can_be_read_but_not_built_in(tmp_path, helpers):
    store = Store(tmp_path / "run")
    ref = store.build(helpers.spec(), 1, helpers.make)
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from conftest import checked_spec, make_checked
        from grpo_pipeline.errors import UserError
        from grpo_pipeline.store import Store
        store = Store("run")
        print(store.build(checked_spec(), 1, make_checked).read("checked").height)
        try:
            store.build(checked_spec(round=1), 1, make_checked)
        except UserError as error:
            print(error)
    """
    output = run_mounted(tmp_path, "mount --bind run run && mount -o remount,bind,ro run", program)
    rows, message = output.splitlines()
    assert rows == "3"
    assert message.startswith("not allowed while locking")
    assert "make the store writable or choose another root" in message
    assert ref.read("checked").height == 3


@pytest.mark.parametrize("instead", [None, "a file in its place"])
def test_store_that_vanishes_during_a_build_is_named(store, helpers, instead):
    def make(index):
        if index == 1:
            shutil.rmtree(store.root)
            if instead:
                Path(store.root).write_text(instead)
        return helpers.make(index)

    with pytest.raises(UserError, match=r"run/staging.*missing while writing shard 00001"):
        store.build(helpers.spec(), 3, make)
    if not instead:
        assert store.build(helpers.spec(), 3, helpers.make).read("checked").height == 9
    else:
        with pytest.raises(UserError, match=r"(missing|not a folder|gone)"):
            store.build(helpers.spec(), 3, helpers.make)


def test_flipped_byte_is_found_before_use(store, built):
    path = Path(store.root, built.path, "checked/part-00001.parquet")
    flip_byte(path, 40)
    with pytest.raises(UserError, match=r"part-00001.parquet: damaged: its sha256"):
        built.read("checked")
    with pytest.raises(UserError, match="sha256"):
        built.scan("checked", check="full")
    built.scan("checked")  # the quick check looks at size and footer only


def test_a_file_that_stays_as_it_is_is_hashed_once_a_process(store, helpers, monkeypatch):
    ref = store.build(helpers.spec(once=1), 3, helpers.make)
    hashed = []
    real = artifact.digest
    monkeypatch.setattr(artifact, "digest", lambda files, path: hashed.append(path) or real(files, path))
    for _ in range(3):
        ref.read("checked")
    assert len(hashed) == 3
    path = Path(store.root, ref.path, "checked/part-00001.parquet")
    same = path.stat()
    flip_byte(path, 40)
    os.utime(path, ns=(same.st_atime_ns, same.st_mtime_ns))  # a modification time can be set; the change time cannot
    with pytest.raises(UserError, match=r"part-00001.parquet: damaged: its sha256"):
        ref.read("checked")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_symbolic_links_out_of_an_artifact_are_not_followed(store, built, tmp_path, what):
    """A manifest's paths stay inside by their text; a link could still lead elsewhere, to a file of the same bytes."""
    table = Path(store.root, built.path, "checked")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(table, elsewhere)
    if what == "file":
        (table / "part-00001.parquet").unlink()
        (table / "part-00001.parquet").symlink_to(elsewhere / "part-00001.parquet")
    else:
        shutil.rmtree(table)
        table.symlink_to(elsewhere)
    with pytest.raises(UserError, match="symbolic link to outside of its artifact"):
        built.read("checked")
    assert {finding.kind for finding in verify(store.root)} >= {"damaged"}


def test_a_store_behind_a_symbolic_link_is_read(store, built, tmp_path):
    """Artifacts on another disk, linked to as a whole, are the user's own arrangement."""
    Path(store.root, "artifacts").rename(tmp_path / "big disk")
    Path(store.root, "artifacts").symlink_to(tmp_path / "big disk")
    assert built.read("checked").height == 9


def test_references_cannot_leave_the_root():
    with pytest.raises(ValueError, match="leaves the store"):
        ArtifactRef(root="r", path="../x", fingerprint="f" * 64, stage="a", round=0, tables=())


def test_cut_off_and_missing_shards_are_found_at_once(store, built):
    path = Path(store.root, built.path, "checked/part-00001.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"damaged: {len(data) - 1} bytes, the manifest says {len(data)}"):
        built.scan("checked")
    path.write_bytes(data[:-4] + b"PAR2")
    with pytest.raises(UserError, match="footer cannot be read"):
        built.scan("checked")
    path.unlink()
    with pytest.raises(UserError, match=r"part-00001.parquet is gone"):
        built.scan("checked")


def test_damaged_model_is_found(store, helpers):
    with store.open_build(helpers.spec(stage="train")) as build:
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        ref = build.finish(content_id="x")
    ref.model_path()  # sound; what is known of it must not hide what comes
    flip_byte(Path(store.root, ref.path, "model/model.safetensors"), 0)
    ref.model_path(check="quick")
    with pytest.raises(UserError, match="sha256"):
        ref.model_path()
    Path(store.root, ref.path, "model/model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="0 bytes"):
        ref.model_path()


def edit_manifest(store, ref, edit):
    path = Path(store.root, ref.path, "manifest.json")
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def test_manifest_of_a_newer_version_is_a_clear_error(store, built, helpers):
    def edit(raw):
        raw.update(schema_version=SCHEMA_VERSION + 1, tables="whatever the future says")

    edit_manifest(store, built, edit)
    for action in (
        lambda: store.find(helpers.spec()),
        lambda: built.read("checked"),
        lambda: scan("checked", store.root),
    ):
        with pytest.raises(UserError, match=rf"schema version {SCHEMA_VERSION + 1}.*update grpo-pipeline"):
            action()


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "", "a\\b", "s3:/x", "a\0b"])
def test_paths_cannot_leave_the_root(store, built, path):
    with pytest.raises(ValueError, match="leaves the store"):
        inside(path)

    def edit(raw):
        raw["tables"]["checked"]["shards"][0]["file"] = path

    edit_manifest(store, built, edit)
    with pytest.raises(UserError, match="leaves the store"):
        built.read("checked")


def test_parents_cannot_leave_the_root_either(store, built, helpers):
    child = store.build(helpers.spec(round=1, parents=(built,)), 1, helpers.make)

    def edit(raw):
        raw["parents"][0]["path"] = "../elsewhere"

    edit_manifest(store, child, edit)
    with pytest.raises(UserError, match=r"parents.0.path.*leaves the store"):
        child.manifest()


def test_broken_manifest_is_named(store, built):
    Path(store.root, built.path, "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json: not valid JSON"):
        built.manifest()


def test_a_table_that_nobody_knows_is_named(store, built):
    edit_manifest(store, built, lambda raw: raw["tables"].update(mine=raw["tables"]["checked"]))
    with pytest.raises(UserError, match=r"manifest.json: table 'mine' is none that this program knows"):
        built.scan("mine")
    assert {finding.kind for finding in verify(store.root)} == {"schema"}


def test_fingerprint_clash_of_the_short_form_is_refused(store, built, helpers):
    edit_manifest(store, built, lambda raw: raw.update(fingerprint=raw["fingerprint"][:12] + "0" * 52))
    with pytest.raises(UserError, match="holds another artifact"):
        store.find(helpers.spec())


def test_missing_run_and_unknown_scheme(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: there is no run here"):
        Store(tmp_path / "nowhere").artifacts()
    with pytest.raises(UserError, match="bogus"):
        Store("bogus://x")


def run_mounted(folder, mount, program):
    """What a program prints in a folder, with a mount that it alone sees; skips where none can be made."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], cwd=folder, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && {sys.executable} program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
