// The page's data: gzipped JSON in base64, so that no text in it can be taken for markup.

async function readData(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// An element with attributes and children; text is always text, never markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const grouped = new Intl.NumberFormat("en");
const count = (n) => grouped.format(n);
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 10 ** -digits || Math.abs(value) >= 1e5)) return value.toExponential(1);
  return Number.isInteger(value) ? count(value) : value.toFixed(Math.abs(value) >= 100 ? 1 : digits);
}

function seconds(value) {
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 5400 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

// A value in [0, 1] as a colour from bad through middle to good.
function shade(value) {
  const far = Math.round(Math.abs(value - 0.5) * 200);
  return `color-mix(in oklab, var(--${value >= 0.5 ? "good" : "bad"}) ${far}%, var(--mid))`;
}

// Rounds are ordered, so they are one colour getting stronger.
function roundColour(index, total) {
  const share = total < 2 ? 100 : Math.round((100 * index) / (total - 1));
  return `color-mix(in oklab, var(--round-to) ${share}%, var(--round-from))`;
}
