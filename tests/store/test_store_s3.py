"""A store on S3: a real server (moto's) on loopback, spoken to by s3fs as a bucket of Amazon's would be."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.store import Store
from grpo_pipeline.store.gc import collect, plan_gc
from grpo_pipeline.store.verify import verify
from grpo_pipeline.tables import scan

pytest.importorskip("s3fs")
if importlib.util.find_spec("moto") is None:
    pytest.skip("could not import 'moto'", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SECRET = "not-to-be-seen-anywhere"


@pytest.fixture(scope="module")
def endpoint():
    # Not at the top: vLLM's CPU backend looks at every attribute of every loaded module, and Flask's do not bear it.
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint, tmp_path, monkeypatch):
    """A store in a bucket of its own; place and credentials come from the environment alone."""
    import s3fs

    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{abs(hash(tmp_path)):x}"
    s3fs.S3FileSystem().mkdir(bucket)
    return Store(f"s3://{bucket}/runs/a")


def test_build_find_scan_verify_and_gc(s3, helpers, tmp_path):
    import polars as pl

    old = s3.build(helpers.spec(round=0), 2, helpers.make)
    ref = s3.build(helpers.spec(round=1), 3, helpers.make)
    assert Store(s3.root).find(helpers.spec(round=1)) == ref
    local = Store(tmp_path / "local").build(helpers.spec(round=1), 3, helpers.make)
    assert ref.read("checked").equals(local.read("checked"))
    assert ref.manifest().tables == local.manifest().tables
    one = scan("checked", s3.root).filter(pl.col("problem_id") == "p02-1").collect()
    assert one["rollout_id"].to_list() == ["r02-2"]
    assert verify(s3.root) == []
    assert s3.files.children("staging") == []
    collect(plan_gc(s3.root, 1))
    assert s3.artifacts() == [ref]
    assert s3.files.walk(old.path) == []


def test_damage_is_found_before_use_although_the_file_was_sound_before(s3, helpers):
    ref = s3.build(helpers.spec(), 1, helpers.make)
    assert ref.read("checked").height == 3
    path = f"{ref.path}/checked/part-00000.parquet"
    data = bytearray(s3.files.open(path).read())
    data[50] ^= 1
    s3.files.write(path, bytes(data))
    with pytest.raises(UserError, match="sha256"):
        ref.read("checked")
    assert [(finding.kind, finding.path) for finding in verify(s3.root)] == [("damaged", path)]


def test_a_model_is_used_from_a_local_cache(s3, helpers):
    with s3.open_build(helpers.spec(stage="train")) as build:
        build.model_dir.joinpath("model.safetensors").write_bytes(b"weights")
        ref = build.finish(content_id="c0ffee")
    folder = ref.model_path()
    assert folder.parent.name == "c0ffee"
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_missing_bucket_and_refused_credentials_are_said(s3, helpers, monkeypatch):
    with pytest.raises(UserError, match="no run here"):
        Store("s3://no-such-bucket/runs/a").artifacts()
    monkeypatch.setattr(s3.files.filesystem, "pipe_file", refuse)
    with pytest.raises(UserError, match=r"not allowed while writing s3://.*make the store writable"):
        s3.build(helpers.spec(), 1, helpers.make)


def refuse(*_):
    raise PermissionError(13, "Access Denied")


PROGRAM = textwrap.dedent("""
    import sys, time
    root, log, here = sys.argv[1:]
    sys.path.insert(0, here)
    from conftest import checked_spec, make_checked
    from grpo_pipeline.store import Store
    def make(index):
        with open(log, "a") as file:
            file.write(f"{index}\\n")
        return make_checked(index)
    store = Store(root)
    with store.open_build(checked_spec(stage="train")) as build:
        if build.ref is None:
            build.model_dir.joinpath("model.safetensors").write_bytes(bytes(1 << 20))
            for i in range(6):
                if not build.has("checked", i):
                    build.write("checked", i, make(i).frames["checked"])
            build.finish(content_id="c0ffee")
    store.build(checked_spec(), 8, make)
""")


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_builds_go_on_and_nothing_is_finished_before_its_manifest(s3, helpers, tmp_path, kills):
    rng = random.Random(kills)
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, s3.root, str(log), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    struck = 0
    while True:
        begun = log.read_text().count("\n") if log.exists() else 0
        with subprocess.Popen(command, env=environment) as process:
            if struck < kills:
                wanted = begun + rng.randint(1, 3)
                while process.poll() is None and (not log.exists() or log.read_text().count("\n") < wanted):
                    time.sleep(0.002)
                time.sleep(rng.uniform(0, 0.1))
                process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                break
            assert process.returncode == -signal.SIGKILL
            struck += 1
            assert verify(s3.root) == []
    assert struck >= 1
    ref, trained = s3.find(helpers.spec()), s3.find(helpers.spec(stage="train"))
    calm = Store(tmp_path / "calm").build(helpers.spec(), 8, helpers.make)
    assert ref.read("checked").equals(calm.read("checked"))
    assert trained.read("checked").height == 18
    assert trained.model_path().joinpath("model.safetensors").stat().st_size == 1 << 20
    assert verify(s3.root) == []
    assert s3.files.children("staging") == []
    assert SECRET not in "".join(s3.files.open(name).read().decode(errors="replace") for name in s3.files.walk(""))
