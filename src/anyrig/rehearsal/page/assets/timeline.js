// The time line: an axis, the critical path, then the lanes of all tracks, on one canvas.

const axisHeight = 24;
const rightMargin = 12;

class Timeline {
  constructor(run, view, steps) {
    Object.assign(this, { run, view, steps });
    this.canvas = find("timeline");
    this.context = this.canvas.getContext("2d");
    this.painter = new Painter(run);
    this.matches = null; // or an array: whether each text matches the search
    this.chosen = -1; // an interval
    this.row = 0; // the lane that the keys walk through
    this.measured = null; // or [begin, end]
    this.showsPath = true;
    this.flows = null;
    this.isDue = false;
    this.layOut();
    this.setTheme();
    new ResizeObserver(() => this.resize()).observe(find("frame"));
    view.onChange(() => this.draw());
  }

  layOut() {
    const { lanes, tracks } = this.run;
    const height = lanes.length > 90 ? 8 : lanes.length > 45 ? 12 : lanes.length > 24 ? 15 : 18;
    this.path = { top: axisHeight + 3, height: 18 };
    let top = this.path.top + this.path.height + 10;
    this.rows = [];
    for (const lane of lanes) {
      const last = this.rows.at(-1);
      if (!last || last.track !== lane.track) {
        if (last) top += tracks[lane.track].rank === tracks[last.track].rank ? 4 : 11;
        this.rows.push({ track: lane.track, top, lanes: [] });
      }
      const row = this.rows.at(-1);
      row.lanes.push({ lane, top, height: height - 1 });
      top += height;
      row.bottom = top;
    }
    this.height = top + 6;
    this.places = this.rows.flatMap((row) => row.lanes);
    this.rowOf = new Map(this.rows.map((row) => [row.track, row]));
  }

  setTheme() {
    this.colours = readColours(this.run);
    this.painter.setTheme(this.context, this.colours);
    this.draw();
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.gutter = readGutter();
    this.outer = find("frame").clientWidth;
    this.width = Math.max(this.outer - this.gutter - rightMargin, 50);
    this.canvas.width = Math.round(this.outer * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paint();
  }

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (this.width) this.paint();
    });
  }

  toX(time) {
    return this.gutter + ((time - this.view.begin) / this.view.duration) * this.width;
  }

  toTime(x) {
    return this.view.begin + ((x - this.gutter) / this.width) * this.view.duration;
  }

  paint() {
    const { context, colours } = this;
    context.font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    context.textBaseline = "middle";
    context.fillStyle = colours.back;
    context.fillRect(0, 0, this.outer, this.height);
    this.paintAxis();
    this.paintLabels();
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, this.width, this.height);
    context.clip();
    paintPathRow(this);
    for (const row of this.rows) this.paintRow(row);
    paintStepBorders(this);
    if (this.showsPath) paintPathMarks(this);
    paintFlow(this);
    paintChosen(this);
    paintMeasured(this);
    context.restore();
  }

  paintAxis() {
    const { context, colours, view } = this;
    const spacing = roundSpacing((view.duration / this.width) * 110);
    // Times count from the step in the middle, unless more than that is visible.
    const middle = this.steps.at((view.begin + view.end) / 2);
    const step = middle && view.duration < 1.5 * (middle.end_ns - middle.begin_ns) ? middle : null;
    const origin = step ? step.begin_ns : 0;
    context.strokeStyle = colours.rule;
    context.fillStyle = colours.faint;
    context.lineWidth = 1;
    context.textAlign = "center";
    for (
      let tick = Math.ceil((view.begin - origin) / spacing);
      origin + tick * spacing <= view.end;
      tick += 1
    ) {
      const x = Math.round(this.toX(origin + tick * spacing)) + 0.5;
      context.beginPath();
      context.moveTo(x, axisHeight - 6);
      context.lineTo(x, this.height);
      context.globalAlpha = 0.55;
      context.stroke();
      context.globalAlpha = 1;
      const text = formatTick(tick * spacing, spacing);
      if (x + context.measureText(text).width / 2 < this.outer) context.fillText(text, x, 9);
    }
    context.textAlign = "left";
    context.fillText(step ? `time in step ${step.number}` : "time in the run", 0, 9);
  }

  paintLabels() {
    const { context, colours } = this;
    const width = this.gutter - 12;
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    paintText(context, "critical path", 0, this.path.top + this.path.height / 2, width);
    for (const row of this.rows) {
      const middle = row.top + row.lanes[0].height / 2;
      const isChosen =
        this.places[this.row] &&
        row.lanes.includes(this.places[this.row]) &&
        document.activeElement === this.canvas &&
        this.chosen >= 0;
      context.fillStyle = isChosen ? colours.accent : colours.ink;
      if (row.bottom - row.top >= 10)
        paintText(context, this.run.tracks[row.track].title, 0, middle, width);
    }
  }

  paintRow(row) {
    const { context, colours, view } = this;
    context.fillStyle = colours.row;
    const left = Math.max(this.toX(0), this.gutter);
    const right = Math.min(this.toX(this.run.end), this.gutter + this.width);
    const isStream = this.run.tracks[row.track].device !== null;
    context.globalAlpha = 0.55;
    if (right > left) context.fillRect(left, row.top, right - left, row.bottom - row.top - 1);
    context.globalAlpha = 1;
    if (isStream && right > left) {
      context.fillStyle = this.painter.idle;
      context.fillRect(left, row.top, right - left, row.bottom - row.top - 1);
    }
    for (const { lane, top, height } of row.lanes) {
      this.painter.paintLane(
        context,
        lane,
        view,
        { left: this.gutter, width: this.width, top, height },
        this.matches,
      );
    }
  }

  // Calls `use` for each visible segment of a critical path.
  eachSegment(use) {
    const { view } = this;
    for (const step of this.run.steps) {
      if (step.end_ns < view.begin || step.begin_ns > view.end) continue;
      for (const segment of step.path)
        if (segment.end >= view.begin && segment.begin <= view.end) use(segment);
    }
  }

  isMatch({ name, module, line }) {
    const { matches } = this;
    return matches === null || matches[name] || matches[module] || matches[line];
  }

  placeOf(interval) {
    return this.places.find(({ lane }) => lane.from <= interval && interval < lane.to);
  }

  partnersOf(interval) {
    const { flow } = this.run.intervals;
    if (interval < 0 || !flow[interval]) return [];
    if (!this.flows) {
      this.flows = new Map();
      flow.forEach((number, i) => {
        if (!number) return;
        if (this.flows.has(number)) this.flows.get(number).push(i);
        else this.flows.set(number, [i]);
      });
    }
    return this.flows.get(flow[interval]).filter((other) => other !== interval);
  }

  // What is at a point of the canvas: {interval} or {segment}, or null. Two pixels beside a lane or an
  // interval count as on it; of several intervals within them, the longest counts.
  hit(x, y) {
    if (x < this.gutter || x > this.gutter + this.width) return null;
    const time = this.toTime(x);
    const reach = (2 * this.view.duration) / this.width;
    if (y >= this.path.top && y <= this.path.top + this.path.height) {
      const step = this.steps.at(time);
      const segment = step?.path.find((one) => one.begin <= time && time < one.end);
      return segment ? { segment } : null;
    }
    const isAt =
      (by) =>
      ({ top, height }) =>
        top - by <= y && y <= top + height + by;
    const place = this.places.find(isAt(0)) ?? this.places.find(isAt(2));
    if (!place) return null;
    const { begin, end } = this.run.intervals;
    const { from, to } = place.lane;
    let best = -1;
    for (
      let i = firstEndingAfter(end, from, to, time - reach);
      i < to && begin[i] <= time + reach;
      i += 1
    ) {
      if (begin[i] <= time && time < end[i]) return { interval: i };
      if (best < 0 || end[i] - begin[i] > end[best] - begin[best]) best = i;
    }
    return best < 0 ? null : { interval: best };
  }

  choose(interval) {
    this.chosen = interval;
    if (interval >= 0) this.row = this.places.indexOf(this.placeOf(interval));
    this.draw();
  }

  // Moves what is visible so that the interval is, and widens it if need be.
  reveal(interval) {
    const { begin, end } = this.run.intervals;
    const [from, to] = [begin[interval], end[interval]];
    if (to - from > this.view.duration) this.view.fit(from, to);
    else if (from < this.view.begin || to > this.view.end) {
      const middle = (from + to) / 2;
      this.view.show(middle - this.view.duration / 2, middle + this.view.duration / 2);
    }
  }
}

function readGutter() {
  return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--gutter"));
}

// All ticks have the unit of the spacing, and as many digits as it needs.
function formatTick(ns, spacing) {
  const [unit, factor] =
    spacing >= 2e8
      ? ["s", 1e9]
      : spacing >= 2e5
        ? ["ms", 1e6]
        : spacing >= 200
          ? ["µs", 1e3]
          : ["ns", 1];
  const digits = Math.max(0, -Math.floor(Math.log10(spacing / factor) + 1e-9));
  return `${(ns / factor).toFixed(digits)} ${unit}`;
}
