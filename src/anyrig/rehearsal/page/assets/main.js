// Reads the data, and starts the parts in their order.

// The visible stretch and the search stand in the address, so that a link or a reload shows the same.
function keepAddress(view, search) {
  let timer = 0;
  const write = () => {
    const parts = new URLSearchParams({ t: `${Math.round(view.begin)},${Math.round(view.end)}` });
    if (search.input.value) parts.set("q", search.input.value);
    try {
      history.replaceState(null, "", `#${parts}`);
    } catch {
      // A page inside a notebook has no address of its own.
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(write, 400);
  };
  view.onChange(soon);
  search.input.addEventListener("input", soon);
}

function readAddress(view, search) {
  const parts = new URLSearchParams(location.hash.slice(1));
  const [begin, end] = (parts.get("t") ?? "").split(",").map(Number);
  if (parts.get("q")) {
    search.input.value = parts.get("q");
    search.look();
  }
  if (!(end > begin)) return false;
  view.show(begin, end);
  return true;
}

async function start() {
  const run = await readRun();
  document.documentElement.classList.add("is-live");
  const view = new View(run.end);
  const steps = new Steps(run, view);
  const timeline = new Timeline(run, view, steps);
  const details = new Details(run, view, steps, timeline);
  const search = new Search(run, view, timeline, details);
  timeline.resize();
  if (!readAddress(view, search)) steps.showTypical();
  keepAddress(view, search);
  startPointer(run, view, timeline, details);
  startKeys(run, view, steps, timeline, details, search);
  startTables();
  startTheme(() => {
    timeline.setTheme();
    details.showSums();
  });
  document.documentElement.dataset.state = "ready";
}

start().catch((error) => {
  document.documentElement.classList.remove("is-live");
  find("notice").textContent =
    `There is no time line, because the page's scripts failed in this browser (${error}). A current browser shows it.`;
  document.documentElement.dataset.state = "failed";
});
