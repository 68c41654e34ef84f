"""What a person sees in Prefect's UI: a real Chromium on a real server, with a worker that runs what is started.

Screenshots are left in build/screenshots/.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.operations.conftest import ROOT

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SCREENSHOTS = ROOT / "build" / "screenshots"


@pytest.fixture(scope="module")
def page(worker):
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def field(page, label, section=None):
    """The input below a label of the form, the first after a section's title."""
    inside = f"//*[text()='{section} (Optional)']/following::" if section else "//"
    return page.locator(
        f"xpath=({inside}label[.//span[text()='{label} (Optional)']])[1]/following::*[self::input or self::textarea][1]"
    )


def screenshot(page, name):
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.fixture
def form(page, worker):
    """The form that starts a run of iterate-rl."""
    deployment = worker.api("/deployments/name/iterate-rl/default")["id"]
    page.goto(f"{worker.url}/deployments/deployment/{deployment}/run")
    page.wait_for_selector("text=RL rounds (I in Algorithm 1)")
    return page


def test_the_form_has_the_parameters_with_their_descriptions(form):
    text = form.inner_text("body")
    for said in (
        "Folder of the run.",
        "RL rounds (I in Algorithm 1); 0 only builds the first PRM.",
        "Weight of the KL to the reference; 0 loads no reference.",
        "Share of historical rows in the refreshed training set.",
        "Peak learning rate.",
    ):
        assert said in text
    assert field(form, "Name").input_value() == "quickstart"
    screenshot(form, "form")


def test_an_impossible_value_is_refused(form, worker):
    before = worker.api("/flow_runs/count", {})
    field(form, "Rounds").fill("-1")
    form.keyboard.press("Tab")
    form.wait_for_timeout(500)
    with form.expect_response(re.compile("create_flow_run")) as refused:
        form.get_by_role("button", name="Submit").click()
    assert refused.value.status == 409
    assert "-1 is less than the minimum of 0" in refused.value.text()
    form.wait_for_selector("text=-1 is less than the minimum of 0")
    screenshot(form, "refused")
    assert worker.api("/flow_runs/count", {}) == before


def test_a_run_started_from_the_form_shows_its_progress_and_rounds(form, worker, tmp_path):
    for label, section, value in (
        ("Name", None, "from-the-form"),
        ("Root", None, str(tmp_path)),
        ("Rounds", None, "1"),
        ("Count", "Problems", "24"),
        ("Eval Count", "Problems", "8"),
        ("Max Tokens", "Sampling", "96"),
        ("Problems", "Labelling", "6"),
        ("Rollouts", "Labelling", "4"),
        ("Completions", "Labelling", "2"),
        ("Steps", "Policy", "3"),
        ("Problems Per Step", "Policy", "4"),
        ("Rollouts Per Problem", "Policy", "4"),
        ("Samples", "Evaluation", "4"),
    ):
        field(form, label, section).fill(value)
        form.keyboard.press("Tab")
    form.wait_for_timeout(500)
    with form.expect_response(re.compile("create_flow_run")) as started:
        form.get_by_role("button", name="Submit").click()
    assert started.value.status == 201, started.value.text()
    run = started.value.json()["id"]
    ended = worker.await_state(run, "COMPLETED", "FAILED", "CRASHED", "CANCELLED", timeout=600)
    assert ended["state"]["type"] == "COMPLETED", ended["state"]
    shown = worker.artifacts()
    assert shown["from-the-form-train-policy-progress"]["data"] == 100
    (last,) = worker.api("/flow_runs/filter", {"flow_runs": {"name": {"any_": ["from-the-form-round-1"]}}})
    form.goto(f"{worker.url}/runs/flow-run/{last['id']}")
    form.locator("text=Artifacts").first.click()
    form.wait_for_selector("text=from-the-form-rounds")
    form.wait_for_timeout(1500)
    screenshot(form, "run")
    form.locator("text=from-the-form-report").first.hover()
    form.mouse.wheel(0, 4000)  # those of the tasks are loaded when they come into sight
    form.wait_for_selector("text=from-the-form-train-policy-progress")
    form.goto(f"{worker.url}/artifacts/artifact/{shown['from-the-form-rounds']['latest_id']}")
    form.wait_for_selector("text=prm_step_accuracy")
    assert form.locator("tbody tr").count() == 2
    screenshot(form, "rounds")
    form.goto(f"{worker.url}/artifacts/artifact/{shown['from-the-form-learning-curves']['latest_id']}")
    form.wait_for_selector("img[src^='data:image/png']")
    assert form.locator("img[src^='data:image/png']").first.evaluate("image => image.naturalWidth") == 800
    screenshot(form, "learning-curves")
    form.goto(f"{worker.url}/artifacts/artifact/{shown['from-the-form-step-labels-card']['latest_id']}")
    form.wait_for_selector("text=How it was made")
    screenshot(form, "card")
    assert Path(tmp_path, "from-the-form", "summary.json").is_file()
