// The memory of each device, drawn by BokehJS, over the same stretch of time as the time line.
//
// Loading the library and drawing a chart take a moment each, so both wait until a reader scrolls
// there, and only visible charts follow the time line.

class MemoryCharts {
  constructor(run, view, timeline, details) {
    Object.assign(this, { run, view, timeline, details });
    this.rows = [];
    this.isDue = false;
    this.library = null;
  }

  // Makes room for the charts, unless the page came without the library; its pictures then stay.
  start() {
    if (!find("library").textContent) return;
    document.documentElement.classList.add("has-charts");
    const observer = new IntersectionObserver((entries) => this.notice(entries), {
      rootMargin: "300px",
    });
    for (const [number, item] of this.run.charts.entries()) {
      const memory = this.run.memory[number];
      const line = make("div", { class: "line", hidden: "" });
      const what = `memory of ${memory.title} over time`;
      const target = make("div", { id: item.target_id });
      const element = make(
        "div",
        { class: "memory-row", role: "img", "aria-label": what },
        target,
        line,
      );
      find("memory-chart").append(this.label(memory), element);
      const row = { memory, item, element, line, isVisible: false, figure: null, isComing: false };
      this.rows.push(row);
      startPointer(this.view, this.timeline, this.details, element, (event) =>
        this.point(row, event),
      )(() => {});
      element.addEventListener("pointerleave", () => this.unpoint());
      observer.observe(element);
    }
    this.view.onChange(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(find("memory-chart"));
  }

  notice(entries) {
    for (const { target, isIntersecting } of entries) {
      const row = this.rows.find(({ element }) => element === target);
      row.isVisible = isIntersecting;
      if (isIntersecting) this.wake(row);
    }
  }

  async wake(row) {
    if (row.isComing) return this.draw();
    row.isComing = true;
    try {
      this.library ??= this.load();
      await this.library;
      const [{ model }] = await Bokeh.embed.embed_item(row.item);
      row.source = model.select_one("source");
      row.figure = model;
      this.paintRow(row);
      this.fill();
    } catch (error) {
      console.error(error);
      document.documentElement.classList.remove("has-charts"); // the pictures come back
    }
  }

  async load() {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await inflate(find("library").textContent));
    document.head.append(script);
    Bokeh.set_log_level("warn");
  }

  label(memory) {
    memory.totals = memory.layers.reduce(
      (sums, layer) => sums.map((sum, i) => sum + layer[i]),
      new Float64Array(memory.ns.length),
    );
    memory.highest = memory.totals.reduce((most, total) => Math.max(most, total), 1);
    const capacity = memory.capacity_bytes;
    const of = capacity
      ? ` of ${formatBytes(capacity)} (${formatShare(memory.highest / capacity)})`
      : "";
    return make(
      "h3",
      {},
      memory.title,
      make("small", {}, `peak ${formatBytes(memory.highest)}${of}`),
    );
  }

  setTheme() {
    for (const row of this.rows) if (row.figure) this.paintRow(row);
  }

  paintRow({ figure, memory }) {
    const { colours } = this.timeline;
    const axis = figure.left[0];
    figure.background_fill_color = figure.border_fill_color = colours.back;
    const highest = memory.highest * 1.06;
    const ticks = memoryTicks(highest);
    axis.ticker.ticks = ticks;
    axis.major_label_overrides = new Map(
      ticks.map((tick) => [tick, tick ? formatBytes(tick).replace(".00", "") : "0"]),
    );
    axis.major_label_text_color = colours.faint;
    axis.major_label_text_font_size = "11px";
    axis.axis_line_color = axis.major_tick_line_color = null;
    for (const grid of figure.center) grid.grid_line_color = colours.rule;
    figure.renderers.forEach((renderer, number) => {
      if (number < colours.layers.length) renderer.glyph.fill_color = colours.layers[number];
      else renderer.glyph.line_color = colours.ink;
    });
    figure.y_range.end = highest;
  }

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.fill();
    });
  }

  fill() {
    const { view } = this;
    for (const { memory, figure, source, isVisible } of this.rows) {
      if (!figure || !isVisible) continue;
      figure.min_border_left = this.timeline.gutter;
      figure.min_border_right = rightMargin;
      source.data = stackVisible(
        memory,
        this.run.layers,
        view.begin,
        view.end,
        this.timeline.width,
      );
      figure.x_range.setv({ start: view.begin, end: view.end });
    }
  }

  point({ memory, element }, event) {
    const x = event.clientX - element.getBoundingClientRect().left;
    if (x < this.timeline.gutter || x > this.timeline.gutter + this.timeline.width)
      return this.unpoint();
    const time = this.timeline.toTime(x);
    this.timeline.onPoint(time);
    const at = firstEndingAfter(memory.ns, 0, memory.ns.length, time) - 1;
    const step = this.timeline.steps.at(time);
    const pairs = this.run.layers
      .map((layer, number) => [
        layer.label,
        at < 0 ? "0 B" : formatBytes(memory.layers[number][at]),
      ])
      .reverse();
    if (step) pairs.push(["time", `${formatTime(time - step.begin_ns)} into step ${step.number}`]);
    this.details.showText(
      `${memory.title}: ${formatBytes(at < 0 ? 0 : memory.totals[at])}`,
      pairs,
      event.clientX,
      event.clientY,
    );
  }

  unpoint() {
    this.timeline.onPoint(null);
    this.details.hideTooltip();
  }

  // A line at the time of the pointer, wherever the pointer is.
  mark(time) {
    for (const { line } of this.rows) {
      line.hidden = time === null;
      if (time !== null) line.style.transform = `translateX(${this.timeline.toX(time)}px)`;
    }
  }
}

function memoryTicks(highest) {
  const spacing = 2 ** Math.ceil(Math.log2(highest / 4));
  return Array.from({ length: Math.floor(highest / spacing) + 1 }, (_, number) => number * spacing);
}

// The sums of layers as steps, for one or two columns a pixel: of several points in a column, the
// highest counts.
function stackVisible(memory, layers, begin, end, width) {
  const names = layers.map((layer) => layer.name);
  const data = { x: [], zero: [], ...Object.fromEntries(names.map((name) => [name, []])) };
  const column = (end - begin) / width;
  const put = (x, point) => {
    data.x.push(x);
    data.zero.push(0);
    let sum = 0;
    names.forEach((name, number) => {
      if (point >= 0) sum += memory.layers[number][point];
      data[name].push(sum);
    });
  };
  const { ns, totals } = memory;
  let now = firstEndingAfter(ns, 0, ns.length, begin) - 1; // the point that holds at x, or -1
  let x = begin;
  while (x < end) {
    let highest = now;
    let next = now + 1;
    let until = next < ns.length ? ns[next] : end;
    if (until - x < column) {
      until = x + column;
      for (; next < ns.length && ns[next] < until; next += 1) {
        if (highest < 0 || totals[next] > totals[highest]) highest = next;
      }
    }
    until = Math.min(until, end);
    put(x, highest);
    put(until, highest);
    while (next < ns.length && ns[next] <= until) next += 1;
    now = next - 1;
    x = until;
  }
  return data;
}
