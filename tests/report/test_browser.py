"""The report as a person has it before them: opened in a real headless Chromium.

It needs playwright's Python package and a Chromium on the machine (on Debian ``apt-get install chromium``); without
either the tests say so and are skipped. Screenshots are written to the folder that ``REPORT_SCREENSHOTS`` names.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from grpo_pipeline.report.page import render_page, write_report
from tests.report.made_run import MadeRun
from tests.report.reading import read_payload
from tests.report.test_page import EVIL, evil_run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")

WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 400, "height": 840}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # A container's root has no user namespace for Chromium's sandbox, and the page is our own.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return MadeRun(tmp_path_factory.mktemp("made") / "made", problems=12, per_problem=4).whole()


@pytest.fixture(scope="module")
def page_file(made):
    return Path(write_report(made.store.root))


@pytest.fixture
def open_page(browser):
    """Opens a file, waits until it is drawn, and fails on any message of the browser's console."""
    contexts, messages = [], []

    def open_file(path, viewport=WIDE, scheme="light", fragment=""):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on(
            "request",
            lambda request: (
                messages.append(f"loads {request.url}") if not request.url.startswith(("file:", "data:")) else None
            ),
        )
        page.goto(f"{path.as_uri()}{fragment}")
        page.wait_for_selector("html[data-ready]", timeout=30_000)
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert messages == []


def expect_rows(page, number):
    """Wait until the filters leave this many solutions."""
    sync_api.expect(page.locator("#count")).to_have_text(re.compile(rf"^{number:,} "))


def colour_of(page, value):
    """The colour that the page's own style gives a value in [0, 1], as the browser computes it."""
    return page.evaluate(
        """value => { const n = document.createElement('i'); const far = Math.round(Math.abs(value - .5) * 200);
        n.style.background = `color-mix(in oklab, var(--${value >= .5 ? 'good' : 'bad'}) ${far}%, var(--mid))`;
        document.body.append(n); const c = getComputedStyle(n).backgroundColor; n.remove(); return c; }""",
        value,
    )


def test_every_section_of_a_whole_run_is_drawn(open_page, page_file):
    page = open_page(page_file)
    shown = page.eval_on_selector_all("main > section:not([hidden])", "nodes => nodes.map(n => n.id)")
    assert shown == ["policy", "training", "reward-model", "labels", "cost", "figures", "solutions"]
    assert page.locator("main svg.plot").count() >= 10
    assert not page.locator("text=NaN").count()
    assert page.evaluate(
        """[...document.querySelectorAll('svg *')]
        .every(n => [...n.attributes].every(a => !/NaN|Infinity|undefined/.test(a.value)))"""
    )


def test_a_run_of_milliseconds_has_its_costs_drawn(open_page, page_file, tmp_path):
    payload = read_payload(page_file.read_text(encoding="utf-8"))
    for number, cost in enumerate(payload["charts"]["costs"]):
        cost["seconds"] = 0.001 * (number % 3)
    path = tmp_path / "fast.html"
    html = render_page(title="fast", root="fast", standfirst="", tiles=[], figures=[], payload=payload)
    path.write_text(html, encoding="utf-8")
    page = open_page(path)
    assert page.locator("#cost svg.plot").count() == 1


def test_colours_are_those_of_the_labels(open_page, page_file, made):
    payload = read_payload(page_file.read_text(encoding="utf-8"))
    # The first solution is a labelled one, coloured by its labels; its strip in the list has three lanes.
    name = payload["solutions"]["solutions"]["id"][0]
    page = open_page(page_file)
    keys = sorted(key for key in made.soft if key[0] == name)
    edges = page.eval_on_selector_all("#detail .step", "nodes => nodes.map(n => getComputedStyle(n).borderLeftColor)")
    assert edges == [colour_of(page, made.soft[key]) for key in keys]
    lanes = page.eval_on_selector_all(
        "#row-0 .strip b", "nodes => nodes.map(b => [...b.children].map(i => getComputedStyle(i).backgroundColor))"
    )
    for lane, key in zip(lanes, keys, strict=True):
        values = (made.soft[key], round(made.scores[key], 3), float(made.truth[key]))
        assert lane == [colour_of(page, value) for value in values]
    page.check("input[name=colour][value=truth]", force=True)
    edges = page.eval_on_selector_all("#detail .step", "nodes => nodes.map(n => getComputedStyle(n).borderLeftColor)")
    assert edges == [colour_of(page, float(made.truth[key])) for key in keys]
    assert colour_of(page, 0.0) != colour_of(page, 0.5) != colour_of(page, 1.0)


def test_filters_leave_what_they_should(open_page, page_file, made):
    page = open_page(page_file)
    payload = read_payload(page_file.read_text(encoding="utf-8"))
    solutions = payload["solutions"]["solutions"]
    total = len(solutions["id"])
    expect_rows(page, total)

    page.check("input[name=verdict][value=wrong]", force=True)
    expect_rows(page, solutions["verdict"].count("wrong"))
    page.check("input[name=verdict][value=correct]", force=True)
    expect_rows(page, total)
    page.click("button[type=reset]")

    page.select_option("#f-round", "1")
    expect_rows(page, solutions["round"].count(1))
    page.select_option("#f-set", "labelled")
    labelled = payload["solutions"]["sets"].index("labelled")
    expect_rows(page, sum(r == 1 and s == labelled for r, s in zip(solutions["round"], solutions["set"], strict=True)))
    page.click("button[type=reset]")
    expect_rows(page, total)

    def most(difference):
        found = {}
        for key, value in difference.items():
            found[key[0]] = max(found.get(key[0], 0), value)
        return found

    gaps = most({key: abs(made.soft[key] - round(made.scores[key], 3)) for key in made.soft})
    page.fill("#f-gap", "0.6")
    matching = sum(gap >= 0.6 for gap in gaps.values())
    assert matching > 0
    expect_rows(page, matching)
    page.fill("#f-gap", "0")
    errors = most({key: abs(made.truth[key] - round(made.scores[key], 3)) for key in made.truth})
    page.fill("#f-error", "0.4")
    matching = sum(error >= 0.4 for error in errors.values())
    assert matching > 0
    expect_rows(page, matching)
    page.fill("#f-error", "0")

    page.select_option("#f-sort", "error")
    first = page.get_attribute("#row-0", "aria-label")
    assert f"error {max(errors.values()):.2f}" in first

    page.select_option("#f-sort", "problem")
    question = payload["solutions"]["problems"]["question"][3]
    page.fill("#f-text", question)
    expect_rows(page, solutions["problem"].count(3))
    page.fill("#f-text", "no such words anywhere")
    page.wait_for_selector("#detail .empty")
    expect_rows(page, 0)


def test_it_is_used_by_keyboard(open_page, page_file):
    page = open_page(page_file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "f-text"
    page.focus("#list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#list", "aria-activedescendant") == "row-2"
    assert page.get_attribute("#row-2", "aria-selected") == "true"
    assert page.locator("[role=option][aria-selected=true]").count() == 1
    page.keyboard.press("End")
    last = len(read_payload(page_file.read_text(encoding="utf-8"))["solutions"]["solutions"]["id"]) - 1
    assert page.get_attribute("#list", "aria-activedescendant") == f"row-{last}"
    assert page.locator(f"#row-{last}").is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#detail details[open] .answers li").first.is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    # A chart reads its values off by arrow keys.
    page.focus("#policy svg.plot")
    page.keyboard.press("ArrowLeft")
    assert "accuracy" in page.inner_text("#tip")


def test_every_control_has_a_name(open_page, page_file):
    page = open_page(page_file)
    nameless = page.evaluate(
        """[...document.querySelectorAll('main :is(input, select, button, [role=listbox], [role=img], [role=region])')]
        .filter(n => !(n.labels?.length || n.textContent.trim() || n.getAttribute('aria-label')))
        .map(n => n.outerHTML)"""
    )
    assert nameless == []


def test_a_chart_turns_into_its_table(open_page, page_file):
    page = open_page(page_file)
    card = page.locator("#policy figure").first
    card.locator(".flip").click()
    assert card.locator("table tbody tr").all_inner_texts() == ["0\t0.500\t0.700", "1\t0.600\t0.700"]
    card.locator(".flip").click()
    assert card.locator("svg.plot").is_visible()


def test_an_address_opens_its_solution(open_page, page_file):
    name = read_payload(page_file.read_text(encoding="utf-8"))["solutions"]["solutions"]["id"][17]
    page = open_page(page_file, fragment=f"#solution={name}")
    assert name in page.inner_text("#detail .facts")


def test_evil_texts_are_only_texts(open_page, tmp_path):
    path = Path(write_report(evil_run(tmp_path / "evil"), tmp_path / "evil.html"))
    page = open_page(path)
    assert page.evaluate("window.pwned") is None
    assert page.inner_text("#detail h3") == EVIL
    assert page.inner_text("#detail .step .text") == EVIL
    assert page.locator("main img").count() == 0


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")])
def test_it_is_readable_in_light_and_dark_wide_and_narrow(open_page, page_file, viewport, scheme):
    page = open_page(page_file, viewport, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    contrast = page.evaluate(
        """() => {
        const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
            .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b; };
        const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
            return (x + .05) / (y + .05); };
        const back = getComputedStyle(document.querySelector('.card')).backgroundColor;
        const texts = ['.card h3', '.card .about', '.row .q', '.row .sub', '.step .text', '.verdict.correct',
            '.verdict.wrong'];
        return texts.map(s => [s, ratio(getComputedStyle(document.querySelector(s)).color, back)]); }"""
    )
    assert {name: value for name, value in contrast if value < 4.5} == {}
    if folder := os.environ.get("REPORT_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        width = "wide" if viewport is WIDE else "narrow"
        page.screenshot(path=Path(folder) / f"report-{width}-{scheme}.png", full_page=True)


def repeated(packed, times):
    """The solutions of a page several times over."""
    n_steps = len(packed["steps"]["text"])
    solutions = {name: values * times for name, values in packed["solutions"].items() if name != "first"}
    solutions["id"] = [f"{name}-{i // len(packed['solutions']['id'])}" for i, name in enumerate(solutions["id"])]
    starts = packed["solutions"]["first"][:-1]
    solutions["first"] = [start + n_steps * i for i in range(times) for start in starts] + [n_steps * times]
    steps = {name: values * times for name, values in packed["steps"].items()}
    return packed | {"solutions": solutions, "steps": steps, "total": len(solutions["id"])}


@pytest.fixture(scope="module")
def large_page(page_file, tmp_path_factory):
    """A page of at least 5,000 solutions, and their number."""
    payload = read_payload(page_file.read_text(encoding="utf-8"))
    times = -(-5000 // len(payload["solutions"]["solutions"]["id"]))
    payload["solutions"] = repeated(payload["solutions"], times)
    path = tmp_path_factory.mktemp("large") / "large.html"
    html = render_page(title="large", root="large", standfirst="", tiles=[], figures=[], payload=payload)
    path.write_text(html, encoding="utf-8")
    return path, payload["solutions"]["total"]


def test_a_long_list_holds_the_rows_in_sight_alone(open_page, large_page):
    path, total = large_page
    assert total >= 5000
    page = open_page(path)
    assert page.locator("#list .row").count() < 60
    page.focus("#list")
    page.keyboard.press("End")
    assert page.get_attribute(f"#row-{total - 1}", "aria-posinset") == str(total)


@pytest.mark.slow  # not for its length: beside other tests on the same cores a time says nothing
def test_five_thousand_solutions_open_in_three_seconds(open_page, large_page):
    # From the start of loading to the finished page, by the browser's own clock; twice, as the machine may be busy.
    assert min(int(open_page(large_page[0]).get_attribute("html", "data-ready")) for _ in range(2)) < 3000
