"""The report of a run: one HTML file with everything in it, which loads nothing and runs no script but its own.

Texts of solutions reach the page in one place only, as gzipped JSON in base64, and are put into it as text nodes;
what the template shows is escaped. A content security policy with the script's hash holds the browser to that.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpo_pipeline import __version__
from grpo_pipeline.errors import UserError
from grpo_pipeline.report.current import Described, current_artifacts, describe
from grpo_pipeline.report.distributions import calibration, label_and_score, labels_by_position, score_histograms
from grpo_pipeline.report.evidence import Evidence, gather_evidence
from grpo_pipeline.report.headline import figure_tables, standfirst, tiles
from grpo_pipeline.report.series import (
    TRAINING_FIRST,
    aggregate_of,
    figures_by_k,
    figures_by_round,
    replay_rows,
    stage_costs,
    training_metrics,
)
from grpo_pipeline.report.solutions import pack_solutions
from grpo_pipeline.store import ArtifactRef, Store

SOLUTIONS = 5000
"""Solutions in the table at most, unless told otherwise."""

FILE = "report.html"
SCRIPTS = ("data.js", "charts.js", "sections.js", "solutions.js", "main.js")


def write_report(
    run: str, out: Path | None = None, *, artifacts: Sequence[ArtifactRef] | None = None, limit: int = SOLUTIONS
) -> str:
    """Write the report of a run and return its path.

    Args:
        run: The run's folder or URL.
        out: File to write; ``report.html`` in the run's folder if None.
        artifacts: What the report is about; the newest artifacts of each stage and round if None.
        limit: Solutions in the table at most; the charts count all.

    Raises:
        UserError: There is no run, it is empty, or the file cannot be written.
    """
    store = Store(run)
    chosen = current_artifacts(store) if artifacts is None else describe(artifacts)
    if not chosen:
        raise UserError(f"{run}: there is no finished artifact to report on yet")
    title = store.root.rstrip("/").rsplit("/", 1)[-1]
    page = render(title, store.root, chosen, limit).encode()
    if out is None:
        store.files.write(FILE, page)
        return f"{store.root}/{FILE}"
    try:
        out.write_bytes(page)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); choose another place with --out") from None
    return str(out)


def render(title: str, root: str, artifacts: Sequence[Described], limit: int) -> str:
    """The page's HTML."""
    evidence = gather_evidence(artifacts)
    charts = chart_data(artifacts, evidence)
    refs = [ref for ref, _ in artifacts]
    payload = {"charts": charts, "solutions": pack_solutions(evidence, refs, limit)}
    return render_page(
        title=title,
        root=root.rsplit("/", 1)[-1],
        standfirst=standfirst(artifacts, evidence),
        tiles=tiles(charts, evidence),
        figures=figure_tables(charts["figures"], artifacts),
        payload=payload,
    )


def chart_data(artifacts: Sequence[Described], evidence: Evidence) -> dict[str, Any]:
    """What the charts are drawn from."""
    figures = figures_by_round(artifacts)
    how = aggregate_of(artifacts)
    return {
        "figures": figures,
        "by_k": figures_by_k(figures),
        "training": training_metrics(artifacts),
        "training_first": list(TRAINING_FIRST),
        "calibration": calibration(evidence, how),
        "scores": score_histograms(evidence, how),
        "positions": labels_by_position(evidence),
        "agreement": label_and_score(evidence),
        "costs": stage_costs(artifacts),
        "replay": replay_rows(artifacts),
    }


def render_page(*, payload: dict[str, Any], **texts: Any) -> str:
    """Fill the template; `texts` are escaped, the payload is packed."""
    import jinja2
    import markupsafe

    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_asset("page.html.jinja")).render(
        **texts,
        version=__version__,
        interactive=True,
        script=markupsafe.Markup(script),
        style=markupsafe.Markup(_asset("style.css")),
        script_hash=f"sha256-{digest}",
        data=pack(payload),
    )


def pack(payload: dict[str, Any]) -> str:
    """JSON, gzipped, in base64: the same text for the same payload."""
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _asset(name: str) -> str:
    return files("grpo_pipeline.report").joinpath("assets", name).read_text(encoding="utf-8")
