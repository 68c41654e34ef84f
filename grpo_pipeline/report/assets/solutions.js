// The table of solutions: filters, a list that holds only the rows in sight, and one solution in full.

const ROW = 58;
const SPARE = 8;
const VERDICTS = { correct: ["✓", "right"], wrong: ["✗", "wrong"], no_answer: ["∅", "no answer"], timeout: ["?", "undecided"], unchecked: ["·", "unchecked"] };
const MARKS = { correct: "✓", wrong: "✗", no_answer: "∅", timeout: "?", "cut off": "…" };
const LANES = { soft: "label", score: "score", truth: "truth" };
const STRIP_STEPS = 14;

// The packed columns as one object a solution.
function unpack(packed, how) {
  const { solutions: s, steps: t, problems: p } = packed;
  const value = (v) => (v === null || v === undefined ? null : v / 1000);
  return s.id.map((id, i) => {
    const steps = [];
    for (let k = s.first[i]; k < s.first[i + 1]; k++) {
      steps.push({ text: t.text[k] ?? "", soft: value(t.soft[k]), hard: t.hard[k], source: t.source[k], correct: t.correct[k], sampled: t.sampled[k],
        score: value(t.score[k]), truth: t.truth[k], answers: t.completions[k] < 0 ? null : packed.completions[t.completions[k]] });
    }
    const problem = s.problem[i];
    const most = (pairs) => pairs.reduce((best, [a, b]) => (a === null || b === null ? best : Math.max(best ?? 0, Math.abs(a - b))), null);
    const scores = steps.map((step) => step.score).filter((v) => v !== null);
    const score = !scores.length ? null : { min: Math.min(...scores), prod: scores.reduce((a, b) => a * b, 1), last: scores.at(-1), mean: scores.reduce((a, b) => a + b, 0) / scores.length }[how];
    const verdict = s.verdict[i] ?? "unchecked";
    const target = verdict === "correct" ? 1 : verdict === "wrong" || verdict === "no_answer" ? 0 : null;
    return { id, i, problem, question: p.question[problem] ?? "(the problem is not in this run)", gold: p.gold[problem], solved: value(p.solved[problem]), others: p.n[problem],
      set: packed.sets[s.set[i]], round: s.round[i], index: s.index[i], verdict, answer: s.answer[i], finish: s.finish[i], tokens: s.tokens[i], steps, score,
      gap: most(steps.map((x) => [x.soft, x.score])), error: most(steps.map((x) => [x.truth, x.score])), miss: score === null || target === null ? null : Math.abs(score - target),
      noise: most(steps.map((x) => [x.soft === null ? null : x.hard, x.truth])) };
  });
}

const ORDERS = {
  problem: ["by problem", () => null, () => ""],
  gap: ["label against score", (s) => s.gap, (s) => `gap ${figure(s.gap, 2)}`],
  error: ["biggest score errors (truth)", (s) => s.error, (s) => `error ${figure(s.error, 2)}`],
  miss: ["score against verdict", (s) => s.miss, (s) => `score ${figure(s.score, 2)}`],
  noise: ["labels that the truth refutes", (s) => s.noise, (s) => (s.noise ? "label wrong" : "")],
  low: ["lowest score", (s) => (s.score === null ? null : -s.score), (s) => `score ${figure(s.score, 2)}`],
  hard: ["hardest problems", (s) => (s.solved === null ? null : -s.solved), (s) => `solved ${Math.round(100 * s.solved)}%`],
  long: ["most steps", (s) => s.steps.length, (s) => plural(s.steps.length, "step")],
};

class Browser {
  constructor(packed, how) {
    this.all = unpack(packed, how);
    this.total = packed.total;
    this.how = how;
    this.lanes = Object.keys(LANES).filter((lane) => this.all.some((s) => s.steps.some((x) => x[lane] !== null)));
    this.colour = this.lanes[0] ?? "soft";
    this.haystack = null;
    this.shown = this.all;
    this.current = 0;
    this.nodes = new Map();
    this.byProblem = new Map();
    for (const s of this.all) (this.byProblem.get(s.problem) ?? this.byProblem.set(s.problem, []).get(s.problem)).push(s);
    this.list = document.getElementById("list");
    this.spacer = document.getElementById("spacer");
    this.detail = document.getElementById("detail");
    this.controls();
    this.list.addEventListener("scroll", () => this.paint(), { passive: true });
    this.list.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.list);
    this.apply();
    this.follow();
    addEventListener("hashchange", () => this.follow());
  }

  controls() {
    const id = (name) => document.getElementById(name);
    this.form = id("filters");
    this.text = id("f-text");
    this.form.addEventListener("submit", (event) => event.preventDefault());
    const options = (node, entries) => node.append(...entries.map(([value, name]) => el("option", { value }, name)));
    options(id("f-set"), [["", "all"], ...[...new Set(this.all.map((s) => s.set))].map((n) => [n, n])]);
    options(id("f-round"), [["", "all"], ...[...new Set(this.all.map((s) => s.round))].sort((a, b) => a - b).map((n) => [n, n])]);
    options(id("f-sort"), Object.entries(ORDERS).filter(([key, [, measure]]) => key === "problem" || this.all.some((s) => measure(s) !== null)).map(([key, [name]]) => [key, name]));
    id("f-verdict").append(...Object.keys(VERDICTS).filter((v) => this.all.some((s) => s.verdict === v)).map((v) =>
      el("label", {}, el("input", { type: "checkbox", name: "verdict", value: v }), el("span", {}, `${VERDICTS[v][0]} ${VERDICTS[v][1]}`))));
    id("f-colour").append(...this.lanes.map((lane) =>
      el("label", {}, el("input", { type: "radio", name: "colour", value: lane, checked: lane === this.colour }), el("span", {}, LANES[lane]))));
    id("f-colour").closest("fieldset").hidden = this.lanes.length < 2;
    id("f-gap-field").hidden = !this.all.some((s) => s.gap !== null);
    id("f-error-field").hidden = !this.all.some((s) => s.error !== null);
    const lanes = id("lanes");
    if (this.lanes.length) lanes.append(`${this.lanes.map((lane) => LANES[lane]).join(" / ")}, a column a step: bad `, el("i", { "aria-hidden": "true" }), " good");
    let timer = 0;
    this.form.addEventListener("input", (event) => {
      if (event.target.name === "colour") { this.colour = event.target.value; this.read(); return; }
      clearTimeout(timer);
      timer = setTimeout(() => this.apply(), event.target === this.text ? 90 : 0);
    });
    this.form.addEventListener("reset", () => setTimeout(() => { this.colour = this.form.elements.colour?.value || this.colour; this.apply(); }));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) { event.preventDefault(); this.text.focus(); }
    });
    this.detail.addEventListener("keydown", (event) => { if (event.key === "Escape") this.list.focus(); });
  }

  apply() {
    const of = (name) => document.getElementById(name);
    const words = this.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [set, round, order] = [of("f-set").value, of("f-round").value, of("f-sort").value || "problem"];
    const verdicts = new Set([...this.form.querySelectorAll("[name=verdict]:checked")].map((node) => node.value));
    const [gap, error] = [Number(of("f-gap").value), Number(of("f-error").value)];
    of("f-gap-out").textContent = gap.toFixed(2);
    of("f-error-out").textContent = error.toFixed(2);
    if (words.length) this.haystack ??= this.all.map((s) => [s.question, s.answer, s.gold, s.id, ...s.steps.map((x) => x.text)].join("\n").toLowerCase());
    const chosen = this.shown[this.current];
    const measure = ORDERS[order][1];
    this.measure = ORDERS[order][2];
    this.shown = this.all.filter((s) => (!set || s.set === set) && (!round || String(s.round) === round) && (!verdicts.size || verdicts.has(s.verdict))
      && (!gap || (s.gap ?? -1) >= gap) && (!error || (s.error ?? -1) >= error) && (order === "problem" || measure(s) !== null)
      && words.every((word) => this.haystack[s.i].includes(word)));
    if (order !== "problem") this.shown.sort((a, b) => measure(b) - measure(a) || a.i - b.i);
    of("count").textContent = this.shown.length === this.all.length ? plural(this.all.length, "solution") : `${count(this.shown.length)} of ${plural(this.all.length, "solution")}`;
    this.spacer.style.height = `${this.shown.length * ROW}px`;
    this.clear();
    const again = this.shown.indexOf(chosen);
    this.choose(again >= 0 && order === "problem" ? again : 0);
  }

  clear() {
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - SPARE);
    const last = Math.min(this.shown.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / ROW) + SPARE);
    for (const [index, node] of this.nodes) if ((index < first || index >= last) && index !== this.current) { node.remove(); this.nodes.delete(index); }
    for (let i = first; i < last; i++) if (!this.nodes.has(i)) this.place(i);
    if (this.shown.length && !this.nodes.has(this.current)) this.place(this.current);
  }

  place(i) {
    const node = this.row(i);
    this.nodes.set(i, node);
    this.spacer.append(node);
  }

  row(i) {
    const s = this.shown[i];
    const [mark, name] = VERDICTS[s.verdict];
    const measure = this.measure(s);
    return el("div", { class: "row", role: "option", id: `row-${i}`, "aria-selected": String(i === this.current), "aria-setsize": this.shown.length, "aria-posinset": i + 1,
      "aria-label": `${name}, ${s.set}, round ${s.round}${measure ? `, ${measure}` : ""}: ${s.question}`, style: { top: `${i * ROW}px` }, onclick: () => { this.choose(i); this.list.focus(); } },
      el("span", { class: `verdict ${VERDICTS[s.verdict] && ["correct", "wrong"].includes(s.verdict) ? s.verdict : "other"}`, title: name }, mark),
      el("span", { class: "q" }, s.question), el("span", { class: "measure" }, measure),
      el("span", { class: "sub" }, this.strip(s), el("span", {}, `${s.set} · round ${s.round}`), el("span", {}, s.answer === null || s.answer === undefined ? "" : `= ${s.answer}`)));
  }

  strip(s) {
    return el("span", { class: "strip", "aria-hidden": "true" }, ...s.steps.slice(0, STRIP_STEPS).map((x) => el("b", {}, ...this.lanes.map((lane) => {
      const value = x[lane];
      return el("i", value === null ? { class: "unknown" } : { style: { background: shade(value) } });
    }))));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.shown.length - 1, this.current + moves[event.key])));
    } else if (event.key === "Enter" || event.key === "ArrowRight") {
      event.preventDefault();
      this.detail.focus();
      if (matchMedia("(max-width: 860px)").matches) this.detail.scrollIntoView();
    }
  }

  choose(i) {
    this.nodes.get(this.current)?.setAttribute("aria-selected", "false");
    this.current = i;
    const top = i * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.paint();
    this.nodes.get(i)?.setAttribute("aria-selected", "true");
    if (this.shown.length) this.list.setAttribute("aria-activedescendant", `row-${i}`);
    else this.list.removeAttribute("aria-activedescendant");
    this.read();
  }

  open(solution) {
    let i = this.shown.indexOf(solution);
    if (i < 0) { this.form.reset(); document.getElementById("f-sort").value = "problem"; this.apply(); i = this.shown.indexOf(solution); }
    this.choose(i);
  }

  // #solution=ID opens that solution.
  follow() {
    const id = new URLSearchParams(location.hash.slice(1)).get("solution");
    const found = id && this.all.find((s) => s.id === id);
    if (found) {
      this.open(found);
      // At once, and again once the charts on the way have been drawn and moved what is below them.
      const arrive = () => document.getElementById("solutions").scrollIntoView({ behavior: "instant" });
      arrive();
      for (const wait of [60, 300, 900]) setTimeout(arrive, wait);
    } else if (id) this.detail.replaceChildren(el("p", { class: "empty" }, `Solution ${id} is not among the ${count(this.all.length)} on this page.`));
  }

  read() {
    const s = this.shown[this.current];
    this.detail.scrollTop = 0;
    if (!s) { this.detail.replaceChildren(el("p", { class: "empty" }, "No solution fits these filters.")); return; }
    const [mark, name] = VERDICTS[s.verdict];
    const fact = (title, ...value) => (value.length && value[0] !== null && value[0] !== undefined ? el("div", {}, el("dt", {}, title), el("dd", {}, ...value.map(String))) : null);
    const facts = el("dl", { class: "facts" }, fact("verdict", `${mark} ${name}`), fact("answer", s.answer), fact("right answer", s.gold), fact("set", s.set), fact("round", s.round),
      fact(`score (${this.how})`, s.score === null ? null : figure(s.score, 2)), fact("problem solved", s.solved === null ? null : `${Math.round(100 * s.solved)}% of ${count(s.others)}`),
      fact("tokens", s.tokens), s.finish === "length" ? fact("ended", "cut off") : null, fact("id", s.id));
    // A solution without the chosen value is coloured by what it has; the head says by what.
    const lane = [this.colour, ...this.lanes].find((one) => s.steps.some((x) => x[one] !== null)) ?? this.colour;
    const head = el("div", { class: "head", "aria-hidden": "true" }, el("span", {}, "step"),
      ...Object.entries(LANES).map(([one, title]) => el("span", { class: one === lane ? "on" : null }, this.lanes.includes(one) ? title : "")));
    this.detail.replaceChildren(el("h3", {}, s.question), facts, head,
      el("ol", { class: "steps", "aria-label": `Steps, coloured by ${LANES[lane]}` }, ...s.steps.map((x, k) => this.step(x, k, lane))), this.siblings(s) ?? "");
  }

  step(x, k, lane) {
    const value = x[lane];
    const gauge = (v, text, note, name) => {
      if (!this.lanes.includes(name)) return el("span");
      if (v === null) return el("span", { class: "gauge" }, "–", el("small", {}, note ?? ""));
      return el("span", { class: "gauge", "data-lane": name, "data-value": v }, text, el("small", {}, note ?? ""), el("span", { class: "bar" }, el("i", { style: { width: `${100 * v}%`, background: shade(v) } })));
    };
    const sampled = x.sampled ? `${x.correct} of ${x.sampled}` : x.source === "outcome" ? "outcome" : x.source ?? "";
    const truth = !this.lanes.includes("truth") ? el("span") : x.truth === null ? el("span", { class: "truth none" }, "–") : el("span", { class: `truth ${x.truth ? "yes" : "no"}` }, x.truth ? "✓ good" : "✗ bad");
    const style = value === null ? {} : { "border-left-color": shade(value), background: `color-mix(in oklab, ${shade(value)} 15%, var(--surface))` };
    return el("li", { class: value === null ? "step unknown-edge" : "step", style, "data-step": k },
      el("div", { class: "line" }, el("div", { class: "text" }, x.text.replace(/\n+$/, "")), gauge(x.soft, figure(x.soft, 2), sampled, "soft"), gauge(x.score, figure(x.score, 2), "", "score"), truth), this.completions(x));
  }

  completions(x) {
    if (!x.answers?.length) return null;
    const all = x.answers.reduce((sum, a) => sum + a[2], 0);
    return el("details", {}, el("summary", {}, `${plural(all, "completion")}, ${plural(x.answers.length, "different end")}`),
      el("ul", { class: "answers" }, ...x.answers.map(([answer, verdict, n, text]) => el("li", {},
        el("span", { class: `verdict ${["correct", "wrong"].includes(verdict) ? verdict : "other"}`, title: verdict.replace("_", " ") }, MARKS[verdict] ?? "·"),
        el("span", {}, answer ?? verdict.replace("_", " ")), el("span", { class: "n", title: `${n} of ${all}` }, el("i", { style: { width: `${(100 * n) / all}%` } })), el("span", { class: "eg" }, text.trim())))));
  }

  siblings(s) {
    const others = this.byProblem.get(s.problem);
    if (others.length < 2) return null;
    return el("nav", { class: "siblings", "aria-label": "Solutions of the same problem" }, `${plural(others.length, "solution")} of this problem here`,
      el("ul", {}, ...others.slice(0, 40).map((o) => el("li", {}, el("button", { type: "button", "aria-current": o === s ? "true" : null, "aria-label": `${VERDICTS[o.verdict][1]}, ${o.set}, round ${o.round}`, onclick: () => this.open(o) },
        el("span", { class: `verdict ${["correct", "wrong"].includes(o.verdict) ? o.verdict : "other"}` }, VERDICTS[o.verdict][0]), `r${o.round}`, this.strip(o))))));
  }
}
