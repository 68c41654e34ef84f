// Reads the data, draws the sections, and says so when it is done: `document.documentElement.dataset.ready`.

function navigation() {
  const nav = document.getElementById("nav");
  const shown = [...document.querySelectorAll("main > section:not([hidden])")];
  const links = new Map(shown.map((section) => [section, el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)]));
  nav.append(...links.values());
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of shown) watcher.observe(section);
}

async function main() {
  const data = await readData(document.getElementById("data").textContent);
  const { charts, solutions } = data;
  policySection(charts);
  trainingSection(charts);
  rewardSection(charts);
  labelSection(charts);
  costSection(charts);
  if (solutions.solutions.id.length) {
    document.getElementById("solutions").hidden = false;
    const here = solutions.solutions.id.length;
    document.getElementById("solutions-lead").textContent = here < solutions.total
      ? `${count(here)} of the run's ${count(solutions.total)} solutions, an equal share of each set and round; the charts above count all of them.`
      : `All ${count(here)} solutions of the run.`;
    new Browser(solutions, charts.scores.how);
  }
  navigation();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

main().catch((error) => {
  const node = document.getElementById("problem");
  node.hidden = false;
  node.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
