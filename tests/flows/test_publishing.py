"""What the flows leave in Prefect's UI: keys that all rounds share, and nothing that could end a run."""

import json
import re

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.states import Completed

from grpo_pipeline.progress import progress
from grpo_pipeline.stages.history import rounds_up_to
from grpo_pipeline.stages.summary import round_table, summarise
from tasks import progress as publishing
from tasks.guard import publishing as guarded
from tasks.keys import artifact_key
from tasks.progress import progress_artifact


def test_a_key_is_what_prefect_takes():
    assert artifact_key("Night_1.b", "step_labels-card") == "night-1-b-step-labels-card"


def test_versions_of_the_rounds_line_up(published, finished):
    for stage in ("label-rollouts", "step-labels", "step-labels-card", "prm-dataset-card", "reward-model", "rounds"):
        assert len(published[f"micro-{stage}"]) == 3, stage
    assert [one["description"] for one in published["micro-policy"]] == ["policy, round 1", "policy, round 2"]
    assert {one["type"] for one in published["micro-learning-curves"]} == {"image"}
    assert published["micro-report"][-1]["data"].startswith("[report.html](file:///")


def test_the_table_has_a_row_a_round(published, micro, finished):
    table = json.loads(published["micro-rounds"][-1]["data"])
    assert [row["round"] for row in table] == [0, 1, 2]
    assert table == round_table(summarise(micro, rounds_up_to(micro, finished[-1])))
    manifests = [one.manifest() for one in finished[2].artifacts() if one.round == 2]
    assert table[2]["tokens"] == sum(manifest.tokens for manifest in manifests)
    assert table[2]["replay_share"] == pytest.approx(0.1, abs=0.05)


def test_a_card_says_how_the_data_was_made(published):
    card = published["micro-step-labels-card"][-1]["data"]
    assert "# step_labels, round 2" in card
    assert re.search(r"\| rows of step_labels \| \d+ \|", card)
    assert "**problems**, round 0" in card


def test_progress_is_kept_up_to_date_and_ends_at_100(prefect_server, monkeypatch):
    monkeypatch.setattr(publishing, "SECONDS_BETWEEN_UPDATES", 0.05)
    seen = []

    def artifact():
        with get_client(sync_client=True) as client:
            return client.request("POST", "/artifacts/latest/filter", json={"limit": 200}).json()

    def current():
        return next(((one["data"], one["description"]) for one in artifact() if one["key"] == "one-progress"), None)

    @task
    def work():
        import time

        with progress_artifact("one-progress", "work"), progress("sampling", 8, "rollouts") as bar:
            bar.advance(2)
            for _ in range(200):
                if (found := current()) is not None:
                    seen.append(found)
                    break
                time.sleep(0.05)

    @flow
    def run():
        work()

    run()
    assert seen == [(25.0, "work: sampling, 2 of 8 rollouts")]
    assert current() == (100.0, "work: done")


def test_a_server_that_does_not_answer_ends_nothing(caplog):
    with guarded("round 1"):
        raise ConnectionError("refused")
    with guarded("round 1"):
        state = Completed()
    assert state.is_completed()
