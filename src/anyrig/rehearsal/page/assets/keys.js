// What the pointer and the keys do.

function startPointer(run, view, timeline, details) {
  const { canvas } = timeline;
  let drag = null;
  const xOf = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const yOf = (event) => event.clientY - canvas.getBoundingClientRect().top;
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        view.zoom(
          Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.0035),
          timeline.toTime(xOf(event)),
        );
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        view.pan((event.deltaX || event.deltaY) / timeline.width);
      }
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = {
      x: xOf(event),
      time: timeline.toTime(xOf(event)),
      isMeasure: event.shiftKey,
      hasMoved: false,
    };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const x = xOf(event);
    if (!drag) {
      markTime(timeline, x);
      details.showTooltip(timeline.hit(x, yOf(event)), event.clientX, event.clientY);
      return;
    }
    if (!drag.hasMoved && Math.abs(x - drag.x) < 4) return;
    drag.hasMoved = true;
    details.hideTooltip();
    if (drag.isMeasure) {
      const time = timeline.toTime(x);
      timeline.measured = [Math.min(time, drag.time), Math.max(time, drag.time)];
      timeline.draw();
      details.sumSoon();
    } else {
      canvas.classList.add("is-dragged");
      const by = timeline.toTime(x) - drag.time;
      view.show(view.begin - by, view.end - by);
    }
  });
  const release = () => {
    canvas.classList.remove("is-dragged");
    const wasClick = drag && !drag.hasMoved;
    drag = null;
    return wasClick;
  };
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerup", (event) => {
    if (!release()) return;
    const hit = timeline.hit(xOf(event), yOf(event));
    timeline.choose(hit?.interval ?? -1);
    if (!hit) timeline.measured = null;
    details.showChosen();
    details.sumSoon();
  });
  canvas.addEventListener("pointerleave", () => {
    markTime(timeline, -1);
    details.hideTooltip();
  });
  canvas.addEventListener("dblclick", (event) => {
    const hit = timeline.hit(xOf(event), yOf(event));
    if (hit) fitPart(run, view, hit);
  });
  canvas.addEventListener("focus", () => timeline.draw());
  canvas.addEventListener("blur", () => {
    details.hideTooltip();
    timeline.draw();
  });
}

// A line through all rows at the pointer.
function markTime(timeline, x) {
  const line = find("line");
  line.hidden = x < timeline.gutter || x > timeline.gutter + timeline.width;
  line.style.transform = `translateX(${x}px)`;
}

function fitPart(run, view, { interval, segment }) {
  const [begin, end] = segment
    ? [segment.begin, segment.end]
    : [run.intervals.begin[interval], run.intervals.end[interval]];
  const room = Math.max(0.15 * (end - begin), 10);
  view.show(begin - room, end + room);
}

// Chooses the interval `by` places further in the lane that the keys walk through.
function walk(run, view, timeline, details, by, rows = 0) {
  const { begin, end } = run.intervals;
  const { chosen } = timeline;
  const time = chosen >= 0 ? (begin[chosen] + end[chosen]) / 2 : (view.begin + view.end) / 2;
  const step = Math.sign(rows) || 1;
  let row = Math.min(Math.max(timeline.row + rows, 0), timeline.places.length - 1);
  while (
    row + step >= 0 &&
    row + step < timeline.places.length &&
    emptyLane(timeline.places[row].lane)
  )
    row += step;
  const { from, to } = timeline.places[row].lane;
  if (from === to) return;
  const isHere = chosen >= from && chosen < to;
  const near = Math.min(firstEndingAfter(end, from, to, time), to - 1);
  timeline.choose(Math.min(Math.max(isHere ? chosen + by : near, from), to - 1));
  timeline.reveal(timeline.chosen);
  details.showChosen();
  details.showTooltipAtChosen();
}

function emptyLane(lane) {
  return lane.from === lane.to;
}

function startKeys(run, view, steps, timeline, details, search) {
  const togglePath = () => {
    timeline.showsPath = !timeline.showsPath;
    find("path").setAttribute("aria-pressed", String(timeline.showsPath));
    timeline.draw();
  };
  const undo = () => {
    if (timeline.chosen >= 0 || timeline.measured) {
      timeline.measured = null;
      timeline.choose(-1);
      details.showChosen();
      details.hideTooltip();
      details.sumSoon();
    } else search.clear();
  };
  const wholeStep = () => (steps.chosen >= 0 ? steps.show(steps.chosen) : steps.showTypical());
  const wholeRun = () => view.fit(0, run.end);
  const help = () => find("keys").showModal();
  // Single letters count only in the time line, so that they disturb no other tool.
  const ofTimeline = {
    ArrowLeft: () => view.pan(-0.15),
    ArrowRight: () => view.pan(0.15),
    ArrowUp: () => walk(run, view, timeline, details, 0, -1),
    ArrowDown: () => walk(run, view, timeline, details, 0, timeline.chosen < 0 ? 0 : 1),
    ",": () => walk(run, view, timeline, details, -1),
    ".": () => walk(run, view, timeline, details, 1),
    "+": () => view.zoom(1 / 1.5),
    "=": () => view.zoom(1 / 1.5),
    "-": () => view.zoom(1.5),
    "−": () => view.zoom(1.5),
    w: () => view.zoom(1 / 1.5),
    s: () => view.zoom(1.5),
    a: () => view.pan(-0.15),
    d: () => view.pan(0.15),
    Home: wholeStep,
    0: wholeRun,
    j: () => steps.move(-1),
    k: () => steps.move(1),
    n: () => search.move(1),
    N: () => search.move(-1),
    c: togglePath,
    Enter: () => timeline.chosen >= 0 && fitPart(run, view, { interval: timeline.chosen }),
    Escape: undo,
  };
  const ofPage = { "/": () => find("search").select(), "?": help };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("keys").open) return;
    const isTyping = event.target instanceof HTMLInputElement;
    const inTimeline = event.target === timeline.canvas || event.target === document.body;
    const act =
      (!isTyping && ofPage[event.key]) ||
      (event.target === timeline.canvas && ofTimeline[event.key]) ||
      (inTimeline &&
        !event.key.startsWith("Arrow") &&
        event.key !== "Home" &&
        ofTimeline[event.key]);
    if (!act) return;
    event.preventDefault();
    act();
  });
  const buttons = {
    "zoom-in": ofTimeline["+"],
    "zoom-out": ofTimeline["-"],
    "whole-step": wholeStep,
    "whole-run": wholeRun,
    path: togglePath,
    help,
  };
  for (const [id, act] of Object.entries(buttons)) find(id).addEventListener("click", act);
}
