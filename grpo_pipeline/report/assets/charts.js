// Charts as inline SVG, redrawn to the width they have; hover or arrow keys read the values off.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter(Boolean));
  return node;
}

const tip = {
  node: null,
  show(text, x, y) {
    this.node ??= document.getElementById("tip");
    this.node.textContent = text;
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    this.node.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    this.node.style.top = `${y + box.height + 22 > innerHeight ? y - box.height - 12 : y + 14}px`;
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

// A card with a chart, what it shows, a key, and the same numbers as a table behind a button.
function card({ title, about, key, draw, height = 220, table, wide, label, keyBelow }) {
  const plot = el("div", { class: "holder" });
  const body = el("div", {}, plot);
  const node = el("figure", { class: wide ? "card wide" : "card" }, el("h3", {}, title));
  if (about) node.append(el("p", { class: "about" }, about));
  if (key?.length) {
    body.append(el("ul", { class: "key", "data-key": true }, ...key.map(([name, colour]) =>
      el("li", {}, el("i", { style: { background: colour } }), name))));
  }
  node.append(body);
  let flipped = null;
  const flip = el("button", { class: "flip", type: "button", "aria-pressed": "false", "aria-label": `${title}: show as table`,
    onclick: () => {
      if (flipped) { flipped.remove(); flipped = null; body.hidden = false; }
      else { flipped = dataTable(table(), title); body.hidden = true; node.append(flipped); }
      flip.textContent = flipped ? "chart" : "table";
      flip.setAttribute("aria-pressed", String(Boolean(flipped)));
    } }, "table");
  node.append(flip);
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    if (keyBelow && key) body.querySelector("[data-key]").hidden = now >= keyBelow;
    const drawn = svg("svg", { class: "plot", viewBox: `0 0 ${now} ${height}`, height, role: "img", "aria-label": label ?? title });
    draw(drawn, now, height);
    plot.replaceChildren(drawn);
  }).observe(plot);
  return node;
}

function dataTable({ columns, rows }, title) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}: table` },
    el("table", { class: "data" },
      el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) =>
        el(i ? "td" : "th", i ? {} : { scope: "row" }, typeof cell === "number" ? figure(cell) : String(cell ?? "–"))))))));
}

function ticks(low, high, wanted = 4) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}

function tickText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(3)));
}

// Labels at the lines' ends, pushed apart where they would overlap.
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + gap);
  const over = labels.length ? labels[labels.length - 1].y - high : 0;
  if (over > 0) labels[labels.length - 1].y -= over;
  for (let i = labels.length - 2; i >= 0; i--) labels[i].y = Math.min(labels[i].y, labels[i + 1].y - gap);
  if (labels.length && labels[0].y < low) labels[0].y = low;
  return labels;
}

// Lines over x. series: {name, colour, points: [{x, y, se, n}], strong}; y null leaves a gap.
function lines(root, width, height, { series, xTicks, xText = String, domain, ends = true, breaks = [], dots = true, log = false, xName }) {
  const right = ends ? Math.min(128, 16 + 6.4 * Math.max(...series.map((s) => s.name.length))) : 8;
  const box = { l: 40, r: width - right, t: 10, b: height - (xName ? 34 : 22) };
  const known = series.flatMap((s) => s.points.filter((p) => p.y !== null));
  let [low, high] = domain ?? [Math.min(...known.map((p) => p.y)), Math.max(...known.map((p) => p.y))];
  if (!domain) {
    if (low > 0 && low < 0.4 * high) low = 0;
    if (high - low < 1e-12) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; }
    const pad = 0.06 * (high - low);
    high += pad;
    if (low !== 0) low -= pad;
  }
  const xs = [...new Set(series.flatMap((s) => s.points.map((p) => p.x)))].sort((a, b) => a - b);
  const scale = log ? Math.log2 : (v) => v;
  const [x0, x1] = [scale(xs[0]), scale(xs[xs.length - 1])];
  const X = (v) => (x1 === x0 ? (box.l + box.r) / 2 : box.l + ((scale(v) - x0) / (x1 - x0)) * (box.r - box.l));
  const Y = (v) => box.b - ((v - low) / (high - low)) * (box.b - box.t);
  for (const v of ticks(low, high)) {
    root.append(svg("line", { class: "grid-line", x1: box.l, x2: box.r, y1: Y(v), y2: Y(v) }),
      svg("text", { x: box.l - 7, y: Y(v) + 4, "text-anchor": "end" }, tickText(v)));
  }
  root.append(svg("line", { class: "axis", x1: box.l, x2: box.r, y1: box.b, y2: box.b }));
  for (const v of breaks) root.append(svg("line", { class: "axis", x1: X(v), x2: X(v), y1: box.t, y2: box.b }));
  for (const v of xTicks ?? xs) root.append(svg("text", { x: X(v), y: box.b + 16, "text-anchor": "middle" }, xText(v)));
  if (xName) root.append(svg("text", { x: (box.l + box.r) / 2, y: height - 4, "text-anchor": "middle" }, xName));
  const labels = [];
  for (const s of series) {
    let path = "";
    let pen = false;
    for (const p of s.points) {
      if (p.y === null) { pen = false; continue; }
      path += `${pen ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(p.y).toFixed(1)}`;
      pen = true;
      if (p.se) root.append(svg("line", { x1: X(p.x), x2: X(p.x), y1: Y(p.y - 1.96 * p.se), y2: Y(p.y + 1.96 * p.se), "stroke-width": 1.2, "stroke-opacity": 0.55, style: { stroke: s.colour } }));
    }
    root.append(svg("path", { d: path, fill: "none", "stroke-width": s.strong ? 2.6 : 1.7, "stroke-linejoin": "round", style: { stroke: s.colour } }));
    if (dots) for (const p of s.points) if (p.y !== null) root.append(svg("circle", { cx: X(p.x), cy: Y(p.y), r: s.strong ? 3.4 : 2.6, style: { fill: s.colour } }));
    const last = s.points.filter((p) => p.y !== null).at(-1);
    if (last && ends) labels.push({ y: Y(last.y), s, x: X(last.x) });
  }
  for (const { y, s } of spread(labels, 13, box.t + 4, box.b)) {
    root.append(svg("text", { x: box.r + 9, y: y + 4, style: { fill: s.colour, "font-weight": s.strong ? 700 : 400 } }, s.name));
  }
  const cursor = svg("line", { class: "cursor", y1: box.t, y2: box.b, visibility: "hidden" });
  root.append(cursor);
  let at = xs.length - 1;
  const show = (index, x, y) => {
    at = Math.max(0, Math.min(xs.length - 1, index));
    const v = xs[at];
    cursor.setAttribute("x1", X(v));
    cursor.setAttribute("x2", X(v));
    cursor.setAttribute("visibility", "visible");
    const rows = series.map((s) => [s.name, s.points.find((p) => p.x === v)]).filter(([, p]) => p && p.y !== null);
    const text = rows.map(([name, p]) => `${name}  ${figure(p.y)}${p.se ? ` ± ${figure(1.96 * p.se)}` : ""}`);
    const rect = root.getBoundingClientRect();
    tip.show([`${xName ?? "x"} ${xText(v)}`, ...text].join("\n"), x ?? rect.left + X(v), y ?? rect.top + box.t);
  };
  const hide = () => { cursor.setAttribute("visibility", "hidden"); tip.hide(); };
  root.addEventListener("pointermove", (event) => {
    const x = event.clientX - root.getBoundingClientRect().left;
    show(xs.reduce((best, v, i) => (Math.abs(X(v) - x) < Math.abs(X(xs[best]) - x) ? i : best), 0), event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.setAttribute("tabindex", "0");
  root.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!move) return;
    event.preventDefault();
    show(at + move);
  });
}

function hover(node, text) {
  node.addEventListener("pointermove", (event) => tip.show(text, event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => tip.hide());
  return node;
}

// Right above the axis, wrong below: shares of each, so that rare errors stay visible.
function mirrored(root, width, height, { up, down, upName, downName, title }) {
  const box = { l: 8, r: width - 8, t: 22, b: height - 20 };
  const middle = (box.t + box.b) / 2;
  const total = (list) => list.reduce((a, b) => a + b, 0) || 1;
  const peak = Math.max(...up.map((n) => n / total(up)), ...down.map((n) => n / total(down)), 1e-9);
  const step = (box.r - box.l) / up.length;
  const bar = (n, all, index, sign, name, colour) => {
    const size = ((n / all) / peak) * (middle - box.t - 2);
    if (!n) return;
    const range = `${(index / up.length).toFixed(2)} to ${((index + 1) / up.length).toFixed(2)}`;
    root.append(hover(svg("rect", { x: box.l + index * step + 0.5, width: step - 1, y: sign > 0 ? middle - 1 - size : middle + 1, height: Math.max(size, 0.8), rx: 1, style: { fill: colour } }),
      `${name}, score ${range}\n${count(n)} of ${count(all)} (${(100 * n / all).toFixed(1)}%)`));
  };
  up.forEach((n, i) => bar(n, total(up), i, 1, upName, "var(--good)"));
  down.forEach((n, i) => bar(n, total(down), i, -1, downName, "var(--bad)"));
  root.append(svg("line", { class: "axis", x1: box.l, x2: box.r, y1: middle, y2: middle }),
    svg("text", { class: "title", x: box.l, y: 12 }, title));
  for (const v of [0, 0.5, 1]) root.append(svg("text", { x: box.l + v * (box.r - box.l), y: height - 5, "text-anchor": v === 0 ? "start" : v === 1 ? "end" : "middle" }, tickText(v)));
}

// Upright stacks. rows: one list of counts a bar; parts: [name, colour].
function stacks(root, width, height, { rows, parts, names, title, xName, peak }) {
  const box = { l: 38, r: width - 4, t: 22, b: height - (xName ? 34 : 20) };
  const step = (box.r - box.l) / rows.length;
  const Y = (v) => box.b - (v / peak) * (box.b - box.t);
  for (const v of ticks(0, peak, 3)) root.append(svg("line", { class: "grid-line", x1: box.l, x2: box.r, y1: Y(v), y2: Y(v) }), svg("text", { x: box.l - 6, y: Y(v) + 4, "text-anchor": "end" }, tickText(v)));
  rows.forEach((row, i) => {
    let base = 0;
    const all = row.reduce((a, b) => a + b, 0);
    row.forEach((n, k) => {
      if (!n) return;
      root.append(hover(svg("rect", { x: box.l + i * step + Math.min(3, step * 0.12), width: Math.max(1, step - 2 * Math.min(3, step * 0.12)), y: Y(base + n), height: Y(base) - Y(base + n), style: { fill: parts[k][1] } }),
        `step ${names[i]}, label ${parts[k][0]}\n${count(n)} of ${plural(all, "step")} (${(100 * n / all).toFixed(0)}%)`));
      base += n;
    });
    if (step > 16 || i % 2 === 0) root.append(svg("text", { x: box.l + (i + 0.5) * step, y: box.b + 15, "text-anchor": "middle" }, names[i]));
  });
  root.append(svg("line", { class: "axis", x1: box.l, x2: box.r, y1: box.b, y2: box.b }), svg("text", { class: "title", x: box.l, y: 12 }, title));
  if (xName) root.append(svg("text", { x: (box.l + box.r) / 2, y: height - 3, "text-anchor": "middle" }, xName));
}

// Reliability: mean score against share good; a dot's area is its number of steps.
function reliability(root, width, height, { rounds, colours, names, unit }) {
  const size = Math.min(width - 60, height - 44);
  const box = { l: 44, t: 8 };
  const X = (v) => box.l + v * size;
  const Y = (v) => box.t + (1 - v) * size;
  const peak = Math.max(...rounds.flatMap((r) => r.bins.map((b) => b[2])), 1);
  for (const v of [0, 0.25, 0.5, 0.75, 1]) {
    root.append(svg("line", { class: "grid-line", x1: X(0), x2: X(1), y1: Y(v), y2: Y(v) }), svg("line", { class: "grid-line", x1: X(v), x2: X(v), y1: Y(0), y2: Y(1) }),
      svg("text", { x: X(0) - 7, y: Y(v) + 4, "text-anchor": "end" }, tickText(v)), svg("text", { x: X(v), y: Y(0) + 16, "text-anchor": "middle" }, tickText(v)));
  }
  root.append(svg("line", { x1: X(0), y1: Y(0), x2: X(1), y2: Y(1), class: "cursor" }), svg("text", { x: X(0.5), y: Y(0) + 32, "text-anchor": "middle" }, "mean score"));
  rounds.forEach((r, i) => {
    root.append(svg("path", { d: r.bins.map((b, k) => `${k ? "L" : "M"}${X(b[0])} ${Y(b[1])}`).join(""), fill: "none", "stroke-width": 1.5, "stroke-opacity": 0.8, style: { stroke: colours[i] } }));
    for (const [score, share, n] of r.bins) {
      root.append(hover(svg("circle", { cx: X(score), cy: Y(share), r: 2.5 + 7 * Math.sqrt(n / peak), "fill-opacity": 0.82, style: { fill: colours[i], stroke: "var(--surface)" } }),
        `${names[i]}: mean score ${score.toFixed(2)}\n${(100 * share).toFixed(1)}% good of ${plural(n, unit.slice(0, -1))}`));
    }
  });
  if (width >= 450) rounds.forEach((r, i) => root.append(
    svg("text", { x: X(1) + 16, y: box.t + 12 + 32 * i, style: { fill: colours[i], "font-weight": 600 } }, names[i]),
    svg("text", { x: X(1) + 16, y: box.t + 26 + 32 * i }, `ECE ${figure(r.ece)} · ${count(r.n)}`)));
}

// Counts of label class by score, shaded by the share of its label class.
function heat(root, width, height, { counts, rows, title }) {
  const box = { l: 62, r: width - 4, t: 22, b: height - 20 };
  const [w, h] = [(box.r - box.l) / counts[0].length, (box.b - box.t) / counts.length];
  counts.forEach((row, index) => {
    const all = row.reduce((a, b) => a + b, 0);
    const y = box.b - (index + 1) * h;
    root.append(svg("text", { x: box.l - 6, y: y + h / 2 + 4, "text-anchor": "end" }, rows[index]));
    row.forEach((n, k) => {
      const share = all ? n / all : 0;
      root.append(hover(svg("rect", { x: box.l + k * w + 0.5, y: y + 0.5, width: w - 1, height: h - 1, rx: 1, style: { fill: n ? `color-mix(in oklab, var(--round-to) ${Math.round(12 + 88 * Math.sqrt(share))}%, var(--surface))` : "var(--hair)" } }),
        `label ${rows[index]}, score ${(k / 10).toFixed(1)} to ${((k + 1) / 10).toFixed(1)}\n${plural(n, "step")}, ${(100 * share).toFixed(0)}% of this label's`));
    });
  });
  root.append(svg("text", { class: "title", x: box.l, y: 12 }, title));
  for (const v of [0, 0.5, 1]) root.append(svg("text", { x: box.l + v * (box.r - box.l), y: height - 5, "text-anchor": v === 0 ? "start" : v === 1 ? "end" : "middle" }, tickText(v)));
}

// Lying bars, one a stage, a part for each round.
function bars(root, width, height, { rows, colours, roundNames }) {
  const label = Math.min(150, width * 0.34);
  const note = width > 520 ? 190 : 66;
  const box = { l: label, r: width - note, step: height / rows.length };
  const peak = Math.max(...rows.map((row) => row.total), 1e-9);
  rows.forEach((row, i) => {
    const y = i * box.step;
    let x = box.l;
    root.append(svg("text", { x: label - 8, y: y + box.step / 2 + 4, "text-anchor": "end", style: { fill: "var(--ink)" } }, row.name));
    row.parts.forEach((part) => {
      const size = (part.seconds / peak) * (box.r - box.l);
      root.append(hover(svg("rect", { x, y: y + 4, width: Math.max(size, 0.6), height: box.step - 8, style: { fill: colours[part.round] } }),
        `${row.name}, ${roundNames[part.round]}\n${seconds(part.seconds)}${part.tokens ? `, ${count(part.tokens)} tokens` : ""}\n${plural(part.rows, "row")}`));
      x += size;
    });
    root.append(svg("text", { x: x + 8, y: y + box.step / 2 + 4 }, seconds(row.total) + (note > 100 && row.tokens ? ` · ${count(row.tokens)} tokens` : "")));
  });
}
