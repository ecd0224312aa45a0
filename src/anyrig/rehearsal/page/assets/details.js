// The tooltip, the pane of the chosen interval, and the pane of sums over what is visible.

class Details {
  constructor(run, view, steps, timeline) {
    Object.assign(this, { run, view, steps, timeline });
    this.tooltip = find("tooltip");
    this.timer = 0;
    view.onChange(() => this.sumSoon());
    this.showChosen();
  }

  // Pairs of a term and a text for {interval} or {segment}, and a title.
  describe({ interval, segment }) {
    const { run } = this;
    const part = segment ?? this.partOf(interval);
    const duration = part.end - part.begin;
    const step = this.steps.at(part.begin);
    const [name, module, line] = [run.text(part.name), run.text(part.module), run.text(part.line)];
    const pairs = [
      [
        "kind",
        segment
          ? `${run.kinds[part.kind].label}, on the critical path`
          : run.kinds[part.kind].label,
      ],
      ["module", module],
      ["line", line],
      ["duration", formatTime(duration)],
    ];
    if (step) {
      pairs.push(["begins", `${formatTime(part.begin - step.begin_ns)} into step ${step.number}`]);
      const share = duration / (step.end_ns - step.begin_ns);
      if (share >= 0.001 && share <= 1) pairs.push(["share of the step", formatShare(share)]);
    }
    if (part.bytes > 1) {
      const rate = duration ? `, ${formatNumber((part.bytes - 1) / duration)} GB/s` : "";
      pairs.push(["bytes", `${formatBytes(part.bytes - 1)}${rate}`]);
    }
    const track = run.tracks[part.track];
    if (track) pairs.push(["on", track.title]);
    let title = name ?? module ?? run.kinds[part.kind].label;
    if (part.count > 1) {
      title = `${part.count} short ${run.kinds[part.kind].label}${name ? `: ${name}` : ", drawn as one"}`;
      if (part.gap) pairs.push(["of that", `${formatTime(part.gap)} between them`]);
    }
    return { title, pairs };
  }

  partOf(i) {
    const { begin, end, kind, name, module, line, bytes, count, gap_ns: gap } = this.run.intervals;
    return {
      begin: begin[i],
      end: end[i],
      kind: kind[i],
      name: name[i],
      module: module[i],
      line: line[i],
      bytes: bytes[i],
      count: count[i],
      gap: gap[i],
      track: this.timeline.placeOf(i).lane.track,
    };
  }

  showTooltip(hit, x, y) {
    if (!hit) return this.hideTooltip();
    const { title, pairs } = this.describe(hit);
    this.tooltip.replaceChildren(make("b", {}, title), makeTerms(pairs));
    this.tooltip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    const left = x + 16 + width > innerWidth ? Math.max(x - 16 - width, 4) : x + 16;
    const top = y + 18 + height > innerHeight ? Math.max(y - 12 - height, 4) : y + 18;
    this.tooltip.style.transform = `translate(${left}px, ${top}px)`;
  }

  hideTooltip() {
    this.tooltip.hidden = true;
  }

  // Below the interval, for a reader who has no pointer.
  showTooltipAtChosen() {
    const { timeline } = this;
    const place = timeline.placeOf(timeline.chosen);
    const { begin, end } = this.run.intervals;
    const box = timeline.canvas.getBoundingClientRect();
    const middle = timeline.toX((begin[timeline.chosen] + end[timeline.chosen]) / 2);
    this.showTooltip(
      { interval: timeline.chosen },
      box.left + middle,
      box.top + place.top + place.height - 10,
    );
  }

  showChosen() {
    const pane = find("details");
    const { chosen } = this.timeline;
    if (chosen < 0) {
      this.showPath(...this.stretch);
      return;
    }
    const { title, pairs } = this.describe({ interval: chosen });
    const partners = this.timeline.partnersOf(chosen);
    if (partners.length) {
      const tracks = partners.map(
        (i) => this.run.tracks[this.timeline.placeOf(i).lane.track].title,
      );
      pairs.push(["together with", tracks.join(", ")]);
    }
    pairs.push(["this operator", this.sumOfSame(chosen)]);
    pane.replaceChildren(make("h3", {}, title), makeTerms(pairs));
    find("spoken").textContent = [
      title,
      ...pairs
        .slice(0, 5)
        .filter((pair) => pair[1])
        .map((pair) => pair.join(" ")),
    ].join(", ");
  }

  sumOfSame(i) {
    const { totals, intervals, typical_steps: steps } = this.run;
    let [ns, count, typical] = [0, 0, 0];
    totals.name.forEach((name, row) => {
      if (name !== intervals.name[i] || totals.kind[row] !== intervals.kind[i]) return;
      ns += totals.ns[row];
      count += totals.count[row];
      typical += totals.typical_ns[row];
    });
    const each = steps.length ? `, ${formatTime(typical / steps.length)} per typical step` : "";
    return intervals.name[i] ? `${formatCount(count)} times, ${formatTime(ns)}${each}` : null;
  }

  // What the sums are over: the measured stretch, or what is visible.
  get stretch() {
    return this.timeline.measured ?? [this.view.begin, this.view.end];
  }

  // While nothing is chosen: what the critical path passes through, by module or else by operator.
  // A star stands for the number of a layer.
  showPath(from, to) {
    const { run } = this;
    const sums = new Map();
    let whole = 0;
    this.timeline.eachSegment((segment) => {
      const time = Math.min(segment.end, to) - Math.max(segment.begin, from);
      if (time <= 0) return;
      const text = run.text(segment.module || segment.name) ?? run.kinds[segment.kind].label;
      const title = text.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
      const key = `${segment.kind} ${title}`;
      const sum = sums.get(key) ?? { title, kind: segment.kind, time: 0 };
      sum.time += time;
      whole += time;
      sums.set(key, sum);
    });
    const largest = [...sums.values()].sort((a, b) => b.time - a.time).slice(0, 40);
    find("details").replaceChildren(
      make("h3", {}, `On the critical path: ${formatTime(whole)}`),
      largest.length
        ? make(
            "table",
            {},
            make(
              "tbody",
              {},
              ...largest.map(({ title, kind, time }) => this.makeSum(kind, title, time, whole)),
            ),
          )
        : make("p", { class: "note" }, "No critical path is known here."),
    );
  }

  // A row with a colour, or that of idle time, a text, a time and its share.
  makeSum(kind, text, time, whole) {
    const { colours } = this.timeline;
    const colour = make("i", {
      style: { background: kind === null ? colours.rule : colours.kinds[kind] },
    });
    return make(
      "tr",
      {},
      make("td", { class: "name", title: text }, colour, text),
      make("td", { class: "number" }, formatTime(time)),
      make("td", { class: "number" }, formatShare(time / whole)),
    );
  }

  sumSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showSums(), 120);
  }

  // Adds up the parts of the streams' intervals that lie within a stretch, by kind and by name.
  showSums() {
    const { run } = this;
    const [from, to] = this.stretch;
    if (this.timeline.chosen < 0) this.showPath(from, to);
    const { begin, end, kind, name, gap_ns: gap } = run.intervals;
    const ofKind = new Float64Array(run.kinds.length);
    const ofName = new Float64Array(run.texts.length + 1);
    const kindOf = new Uint8Array(run.texts.length + 1);
    const streams = new Set();
    for (const lane of run.lanes) {
      if (run.tracks[lane.track].device === null) continue;
      streams.add(lane.track);
      for (
        let i = firstEndingAfter(end, lane.from, lane.to, from);
        i < lane.to && begin[i] < to;
        i += 1
      ) {
        const time = Math.max(Math.min(end[i], to) - Math.max(begin[i], from) - gap[i], 0);
        ofKind[kind[i]] += time;
        ofName[name[i]] += time;
        kindOf[name[i]] = kind[i];
      }
    }
    const whole = (Math.min(to, run.end) - Math.max(from, 0)) * Math.max(streams.size, 1);
    const idle = Math.max(whole - ofKind.reduce((sum, time) => sum + time, 0), 0);
    const kinds = [...ofKind.keys()]
      .filter((one) => ofKind[one] > 0)
      .sort((a, b) => ofKind[b] - ofKind[a]);
    const largest = [...ofName.keys()]
      .filter((one) => one && ofName[one] > 0)
      .sort((a, b) => ofName[b] - ofName[a])
      .slice(0, 12);
    const row = (kind, text, time) => this.makeSum(kind, text, time, whole);
    const title = this.timeline.measured ? "Measured" : "Visible";
    find("sums").replaceChildren(
      make(
        "h3",
        {},
        `${title}: ${formatTime(to - from)} of ${streams.size} ${streams.size === 1 ? "stream" : "streams"}`,
      ),
      make(
        "div",
        { class: "columns" },
        make(
          "table",
          {},
          make(
            "tbody",
            {},
            ...kinds.map((one) => row(one, run.kinds[one].label, ofKind[one])),
            ...(idle && streams.size ? [row(null, "idle", idle)] : []),
          ),
        ),
        make(
          "table",
          {},
          make("tbody", {}, ...largest.map((one) => row(kindOf[one], run.text(one), ofName[one]))),
        ),
      ),
    );
    find("span").textContent = formatTime(to - from);
  }
}
