"""`iterate-rl` is killed with SIGKILL at random moments and started again, until its result is that of a quiet run.

make chaos          # 50 kills
make chaos-quick    # 5
CHAOS_KILLS=5 CHAOS_SEED=7 python -m pytest -s -m chaos tests/chaos    # another seed
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from grpo_pipeline.stages.isolation import MODEL_STAGES
from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.store.verify import verify
from tests.chaos.plan import CHAIN, Kill, Stage, plan_kills
from tests.chaos.running import ROOT, FlowRun, PrefectServer, log_samples, sampled, summary_without_times
from tests.flows.conftest import MICRO

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

KILLS = int(os.environ.get("CHAOS_KILLS", "5"))
SEED = int(os.environ.get("CHAOS_SEED", "0"))
QUICKSTART_KILLS = 4
_IN_CHILD = {"reward_model", "policy", "step_scores", "step_labels", "policy_evaluation", "prm_evaluation"}
assert {"train_policy", "label_steps"} <= MODEL_STAGES


@pytest.fixture(scope="session")
def prefect(tmp_path_factory):
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def micro_file(tmp_path_factory) -> Path:
    settings = MICRO | {"child_processes": True, "training": {"checkpoint_every": 1}}
    return write_toml(tmp_path_factory.mktemp("config") / "micro.toml", settings)


@pytest.fixture(scope="session")
def by_processes(tmp_path_factory) -> Path:
    """The same, its shards made by processes: the quiet run's rows are theirs too."""
    settings = MICRO | {
        "child_processes": True,
        "training": {"checkpoint_every": 1},
        "workers": {"task_runner": "processes", "count": 2},
    }
    return write_toml(tmp_path_factory.mktemp("config") / "processes.toml", settings)


@pytest.fixture(scope="session")
def quiet(tmp_path_factory, micro_file, prefect) -> Path:
    """The undisturbed run's folder."""
    return run_quietly(tmp_path_factory.mktemp("quiet"), micro_file, prefect)


@pytest.mark.parametrize("chain", range(-(-KILLS // CHAIN)))
def test_killed_runs_end_as_undisturbed_ones(chain, quiet, micro_file, by_processes, prefect, tmp_path):
    kills = plan_kills(stages_of(quiet), KILLS, SEED)[chain]
    disturb(kills, quiet, by_processes if chain % 2 else micro_file, prefect, tmp_path)


def test_the_quickstart_survives_kills(tmp_path_factory, prefect, tmp_path):
    config = ROOT / "configs" / "quickstart.toml"
    undisturbed = run_quietly(tmp_path_factory.mktemp("quickstart"), config, prefect)
    long_ones = [stage for stage in stages_of(undisturbed) if stage.seconds > 1]
    (kills,) = plan_kills(long_ones, QUICKSTART_KILLS, SEED)
    disturb(kills, undisturbed, config, prefect, tmp_path)


def disturb(kills: list[Kill], quiet: Path, config: Path, prefect: PrefectServer, folder: Path) -> None:
    """Start the run, kill, start again ...; compare with the quiet run after the last start."""
    root = folder / "runs"
    run = root / quiet.name
    log_samples(run)
    done: list[str] = []
    try:
        for kill in kills:
            done.append(strike(kill, run, FlowRun(config, root, prefect, folder / "flow.log")))
            print(f"\nseed {SEED}: {done[-1]}", flush=True)
            prefect.start()
        last = FlowRun(config, root, prefect, folder / "flow.log")
        assert last.finish() == 0, last.tail()
        assert last.orphans() == []
        compare(run, quiet)
    except BaseException as error:
        error.add_note(
            f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}; so far: {done}; planned: {[str(kill) for kill in kills]}"
        )
        raise


def strike(kill: Kill, run: Path, flow: FlowRun) -> str:
    """Let the flow come to the moment, kill, and look at what is left; what happened, in words."""
    if flow.wait_for(lambda: has_begun(run, kill.stage)):
        time.sleep(kill.delay)
    hit = flow.running()
    if kill.target == "Prefect server":
        flow.server.kill()
    else:
        hit = bool(flow.kill(kill.target)) and hit
    # Without its server or its worker the flow ends by itself; one that has met neither goes on to its end.
    status = flow.finish()
    assert flow.orphans() == []
    if (run / "artifacts").exists():
        assert verify(run) == []
    return f"{kill}: {'killed' if hit else 'too late'}, the flow ended with {status}"


def has_begun(run: Path, stage: Stage) -> bool:
    return (run / "staging" / stage.fingerprint).exists() or (run / "artifacts" / stage.name).exists()


def compare(run: Path, quiet: Path) -> None:
    assert verify(run) == []
    assert [path.name for path in run.glob("staging/*")] == []
    ours, theirs = Store(run).artifacts(), Store(quiet).artifacts()
    assert [ref.path for ref in ours] == [ref.path for ref in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        compare_artifacts(mine, other)
    assert summary_without_times(run) == summary_without_times(quiet)
    twice = [completion for completion, times in Counter(sampled(run)).items() if times > 1]
    assert twice == []
    assert sampled(run) == sampled(quiet)


def compare_artifacts(mine: ArtifactRef, other: ArtifactRef) -> None:
    ours, theirs = mine.manifest(), other.manifest()
    assert (ours.counts, ours.tokens) == (theirs.counts, theirs.tokens), mine.path
    assert (ours.model and ours.model.content_id) == (theirs.model and theirs.model.content_id), mine.path
    assert mine.tables == other.tables
    for table in mine.tables:
        frame, expected = mine.read(table), other.read(table)
        timeless = [name for name in expected.columns if "time" not in name]
        assert frame.columns == expected.columns, (mine.path, table)
        assert frame.select(timeless).equals(expected.select(timeless), null_equal=True), (mine.path, table)


def run_quietly(root: Path, config: Path, prefect: PrefectServer) -> Path:
    name = config.stem
    log_samples(root / name)
    started = time.monotonic()
    flow = FlowRun(config, root, prefect, root / "flow.log")
    assert flow.finish() == 0, flow.tail()
    print(f"\nundisturbed: {time.monotonic() - started:.1f} s", flush=True)
    assert flow.orphans() == []
    return root / name


def stages_of(quiet: Path) -> list[Stage]:
    """The undisturbed run's stages in the order in which they were finished."""
    refs = sorted(Store(quiet).artifacts(), key=lambda ref: (quiet / ref.path / "manifest.json").stat().st_mtime_ns)
    return [
        Stage(
            place=place,
            name=ref.path.removeprefix("artifacts/"),
            fingerprint=ref.fingerprint,
            seconds=ref.manifest().timings.seconds,
            in_child=ref.stage in _IN_CHILD or ref.stage.endswith("_rollouts"),
        )
        for place, ref in enumerate(refs)
    ]


def write_toml(path: Path, settings: dict) -> Path:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += table_lines(key, value)
    path.write_text("\n".join(lines) + "\n")
    return path


def table_lines(name: str, values: dict) -> list[str]:
    lines = [f"[{name}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += table_lines(f"{name}.{key}", value)
    return lines
