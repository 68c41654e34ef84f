// Which charts a run's figures make; a part that was not measured makes none.

const METRIC_NAMES = {
  accuracy: "accuracy", greedy: "greedy", auc: "AUC", auc_on_policy: "AUC, own policy", step_accuracy: "step accuracy",
  first_error_f1: "first-error F1", first_error_f1_on_policy: "F1, own policy", hard_label_accuracy: "hard label accuracy",
  soft_label_brier: "soft label Brier", hard_false_zero: "good steps labelled 0", hard_false_one: "bad steps labelled 1",
};
const STAGE_NAMES = {
  label_rollouts: "sample to label", evaluate_rollouts: "sample to evaluate", greedy_rollouts: "greedy samples", step_labels: "label steps",
  policy: "train policy", reward_model: "train reward model", step_scores: "score steps", policy_evaluation: "measure policy",
  prm_evaluation: "measure reward model", prm_rows: "rows for training", prm_dataset: "mix replay", problems: "problems",
};
const stageName = (stage) => STAGE_NAMES[stage] ?? stage.replaceAll("_", " ");

function add(section, ...cards) {
  const node = document.getElementById(section);
  const made = cards.filter(Boolean);
  if (!made.length) return;
  node.hidden = false;
  node.querySelector("[data-grid]").append(...made);
}

function seriesOf(figures, subject, metrics, colours) {
  return metrics
    .map((metric, i) => ({ metric, name: METRIC_NAMES[metric] ?? metric.replace(/^(maj|pass|bon)(\d+)$/, (_, kind, k) => (kind === "bon" ? `best of ${k}` : `${kind}@${k}`)), colour: colours[i], strong: i === 0,
      points: figures.filter((f) => f.subject === subject && f.metric === metric).map((f) => ({ x: f.round, y: f.value, se: f.se })) }))
    .filter((s) => s.points.some((p) => p.y !== null));
}

function byRound(title, about, series, domain) {
  if (!series.length) return null;
  const rounds = [...new Set(series.flatMap((s) => s.points.map((p) => p.x)))].sort((a, b) => a - b);
  return card({ title, about, height: 250, label: `${title} by round`,
    draw: (root, w, h) => lines(root, w, h, { series, domain, xName: "round" }),
    table: () => ({ columns: ["round", ...series.map((s) => s.name)], rows: rounds.map((r) => [r, ...series.map((s) => s.points.find((p) => p.x === r)?.y)]) }) });
}

function policySection(charts) {
  const largest = Math.max(0, ...charts.by_k.map((f) => f.k));
  const colours = ["var(--c1)", "var(--c5)", "var(--c2)", "var(--c3)", "var(--c4)"];
  const series = seriesOf(charts.figures, "policy", ["accuracy", "greedy", `maj${largest}`, `pass${largest}`, `bon${largest}`], colours);
  add("policy", byRound("Held-out problems solved", "Round 0 is the starting policy. Whiskers are 95% intervals over problems.", series, [0, 1]));
  const kinds = [["maj", "Majority of k"], ["pass", "Any of k (pass@k)"], ["bon", "Best of k by the reward model"]];
  const rounds = [...new Set(charts.by_k.map((f) => f.round))];
  const ks = [...new Set(charts.by_k.map((f) => f.k))].sort((a, b) => a - b);
  if (ks.length < 2) return;
  const parts = kinds.filter(([kind]) => charts.by_k.some((f) => f.kind === kind));
  const node = el("figure", { class: "card" }, el("h3", {}, "What more samples give"),
    el("p", { class: "about" }, "Share of problems solved with k samples, one line a round; the stronger, the later."), el("div", { class: "multiples three" }));
  for (const [kind, name] of parts) {
    const lineup = rounds.map((r, i) => ({ name: String(r), colour: roundColour(i, rounds.length), strong: i === rounds.length - 1,
      points: charts.by_k.filter((f) => f.kind === kind && f.round === r).map((f) => ({ x: f.k, y: f.value, se: null })) }));
    node.querySelector(".multiples").append(bare(name, 200, (root, w, h) => {
      root.append(svg("text", { class: "title", x: 4, y: 10 }, name));
      const inner = svg("g", { transform: "translate(0 12)" });
      root.append(inner);
      lines(proxy(root, inner), w, h - 12, { series: lineup, domain: [0, 1], log: true, xTicks: ks, xName: "k" });
    }));
  }
  add("policy", node);
}

// Draws into a group, listens on the whole picture.
function proxy(root, group) {
  return { append: (...nodes) => group.append(...nodes), addEventListener: (...a) => root.addEventListener(...a), setAttribute: (...a) => root.setAttribute(...a), getBoundingClientRect: () => root.getBoundingClientRect() };
}

function bare(label, height, draw) {
  const holder = el("div");
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    const root = svg("svg", { class: "plot", viewBox: `0 0 ${now} ${height}`, height, role: "img", "aria-label": label });
    draw(root, now, height);
    holder.replaceChildren(root);
  }).observe(holder);
  return holder;
}

function multiples(title, about, parts, height, key, half) {
  if (!parts.length) return null;
  const node = el("figure", { class: parts.length > 2 && !half ? "card wide" : "card" }, el("h3", {}, title), el("p", { class: "about" }, about));
  node.append(el("div", { class: half ? "multiples three" : "multiples" }, ...parts.map(([label, draw]) => bare(`${title}: ${label}`, height, draw))));
  if (key) node.append(el("ul", { class: "key" }, ...key.map(([name, colour, extra]) => el("li", {}, el("i", { class: extra ?? null, style: { background: colour } }), name))));
  return node;
}

function trainingSection(charts) {
  const section = document.getElementById("training");
  for (const stage of [...new Set(charts.training.map((t) => t.stage))].sort((a, b) => (b === "policy") - (a === "policy"))) {
    const runs = charts.training.filter((t) => t.stage === stage);
    const names = [...new Set(runs.flatMap((t) => Object.keys(t.metrics)))];
    let offset = 0;
    const breaks = [];
    const at = runs.map((t) => { const start = offset; offset += t.steps.length; if (start) breaks.push(start + 0.5); return start; });
    const make = (name) => {
      const points = runs.flatMap((t, i) => t.steps.map((step, k) => ({ x: at[i] + k + 1, y: t.metrics[name]?.[k] ?? null })));
      if (!points.some((p) => p.y !== null)) return null;
      return card({ title: `${stage === "policy" ? "" : `${stageName(stage).replace("train ", "")}: `}${name.replaceAll("_", " ")}`, height: 118, label: `${name} by step`,
        draw: (root, w, h) => lines(root, w, h, { series: [{ name: name.split("/").at(-1), colour: "var(--c1)", points }], ends: false, dots: points.length < 12, breaks, xTicks: runs.map((t, i) => at[i] + (t.steps.length + 1) / 2), xText: (v) => Number.isInteger(v) && v >= 1 ? `step ${v}` : "", xName: undefined }),
        table: () => ({ columns: ["round", "step", name], rows: runs.flatMap((t) => t.steps.map((s, k) => [t.round, s, t.metrics[name]?.[k]])) }) });
    };
    const shown = stage === "policy" ? names.filter((n) => charts.training_first.includes(n)).slice(0, 8) : names.filter((n) => n === "loss");
    add("training", ...shown.map((n) => make(n)));
    const rest = names.filter((n) => !shown.includes(n));
    if (!rest.length) continue;
    const more = el("details", { class: "more" }, el("summary", {}, `${rest.length} further metrics of ${stageName(stage)}`));
    more.addEventListener("toggle", () => { if (!more.querySelector(".grid")) more.append(el("div", { class: "grid small" }, ...rest.map(make).filter(Boolean))); }, { once: true });
    section.hidden = false;
    section.querySelector("[data-grid]").append(more);
  }
}

function rewardSection(charts) {
  const colours = ["var(--c1)", "var(--c5)", "var(--c2)", "var(--c3)", "var(--c4)"];
  add("reward-model", byRound("Quality against the truth", "On the starting policy's held-out solutions; “own policy” is on those of the policy trained against the model before it, which is harder.",
    seriesOf(charts.figures, "prm", ["auc", "auc_on_policy", "step_accuracy", "first_error_f1", "first_error_f1_on_policy"], colours), [0, 1]));
  const { calibration, scores } = charts;
  const names = (rounds) => rounds.map((r) => `round ${r.round}`);
  if (calibration.rounds.length) {
    const target = { truth: "exactly known to be good", label: "labelled good (no truth is known)", verdict: "right, as solutions (no truth of steps is known)" }[calibration.target];
    const shades = calibration.rounds.map((_, i) => roundColour(i, calibration.rounds.length));
    add("reward-model", card({ title: "Calibration", about: `Share of ${calibration.unit} ${target}, by score, each round's model on its own policy's. On the diagonal a score is a probability.`, height: 280,
      draw: (root, w, h) => reliability(root, w, h, { rounds: calibration.rounds, colours: shades, names: names(calibration.rounds), unit: calibration.unit }),
      key: calibration.rounds.map((r, i) => [`round ${r.round}, ECE ${figure(r.ece)}`, shades[i]]), keyBelow: 450,
      table: () => ({ columns: ["round", "mean score", "share good", calibration.unit], rows: calibration.rounds.flatMap((r) => r.bins.map((b) => [r.round, ...b])) }) }));
  }
  add("reward-model", multiples("Scores of right and wrong solutions", `Solution score (${scores.how} of its steps), each side as shares of its own total.`,
    scores.rounds.map((r) => [`round ${r.round}`, (root, w, h) => mirrored(root, w, h, { up: r.correct, down: r.wrong, upName: "right", downName: "wrong", title: `round ${r.round}` })]), 190,
    [["right", "var(--good)"], ["wrong", "var(--bad)"]]));
}

function labelSection(charts) {
  const { positions, agreement } = charts;
  const parts = positions.classes.map((name, i) => [name, i === 6 ? "var(--line)" : shade([0, 0.2, 0.4, 0.6, 0.8, 1][i])]);
  const peak = Math.max(1, ...positions.rounds.flatMap((r) => r.positions.map((row) => row.reduce((a, b) => a + b, 0))));
  add("labels", multiples("Soft labels by position of the step", "The share of completions that reach the right answer from here, the last step's being its solution's outcome; of imported labels, what they say.",
    positions.rounds.map((r) => [`round ${r.round}`, (root, w, h) => stacks(root, w, h, { rows: r.positions, parts, title: `round ${r.round}`, xName: "step", peak,
      names: r.positions.map((_, i) => (i + 1 === positions.last_is_open ? `${i + 1}+` : String(i + 1))) })]), 220,
    parts.filter((_, i) => positions.rounds.some((r) => r.positions.some((row) => row[i])))));
  add("labels", byRound("Labels against the truth", "Only generated problems tell the truth of a step.",
    seriesOf(charts.figures, "labels", ["hard_label_accuracy", "hard_false_zero", "hard_false_one", "soft_label_brier"], ["var(--c2)", "var(--c4)", "var(--c3)", "var(--c5)"]), [0, 1]));
  add("labels", multiples("Label against score", "Labelled steps by soft label (upwards) and by the score of the model that was then trained on them. Off the rising diagonal one of both is wrong.",
    agreement.rounds.map((r) => [`round ${r.round}`, (root, w, h) => heat(root, w, h, { counts: r.counts, rows: agreement.classes, title: `round ${r.round}` })]), 215, null, true));
}

function costSection(charts) {
  const rounds = [...new Set(charts.costs.map((c) => c.round))].sort((a, b) => a - b);
  const grouped = new Map();
  for (const c of charts.costs) {
    const row = grouped.get(c.stage) ?? { name: stageName(c.stage), total: 0, tokens: 0, parts: [] };
    row.total += c.seconds;
    row.tokens += c.tokens;
    row.parts.push({ ...c, round: rounds.indexOf(c.round) });
    grouped.set(c.stage, row);
  }
  const total = charts.costs.reduce((sum, c) => sum + c.seconds, 0);
  // A share, not a number of seconds: a small run on a fast machine has a section of its own too.
  const rows = [...grouped.values()].filter((r) => r.total > total / 10_000).sort((a, b) => b.total - a.total);
  if (!rows.length) return;
  const colours = rounds.map((_, i) => roundColour(i, rounds.length));
  add("cost", card({ title: "Time by stage", about: `${seconds(total)} of work in all, also where an earlier run did it; one colour a round.`, wide: true, height: Math.max(60, 27 * rows.length),
    draw: (root, w, h) => bars(root, w, h, { rows, colours, roundNames: rounds.map((r) => `round ${r}`) }), key: rounds.map((r, i) => [`round ${r}`, colours[i]]),
    table: () => ({ columns: ["artifact", "seconds", "tokens", "rows", "left out"], rows: charts.costs.map((c) => [c.name, c.seconds, c.tokens, c.rows, c.left_out]) }) }));
}
