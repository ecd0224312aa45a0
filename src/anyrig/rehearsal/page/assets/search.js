// The search: intervals whose operator, module or line contains the words stay bright; their time is
// added up by kind.

class Search {
  constructor(run, view, timeline, details) {
    Object.assign(this, { run, view, timeline, details });
    this.input = find("search");
    this.lower = run.texts.map((text) => text.toLowerCase());
    this.input.addEventListener("input", () => this.look());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.move(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") this.clear();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    find("next").addEventListener("click", () => this.move(1));
    find("previous").addEventListener("click", () => this.move(-1));
  }

  look() {
    const words = this.input.value.trim().toLowerCase();
    const matches = words
      ? Uint8Array.from(["", ...this.lower], (text) => text.includes(words))
      : null;
    if (matches) matches[0] = 0; // no text
    this.timeline.matches = matches;
    for (const id of ["next", "previous"]) find(id).disabled = !matches;
    find("found").textContent = matches ? this.sum(matches) : "";
    this.timeline.draw();
  }

  // By kind: the time of the host and that of its kernels are no sum.
  sum(matches) {
    const { totals, kinds, typical_steps: steps } = this.run;
    const ofKind = new Float64Array(kinds.length);
    let count = 0;
    for (let i = 0; i < totals.ns.length; i += 1) {
      if (!(matches[totals.name[i]] || matches[totals.module[i]] || matches[totals.line[i]]))
        continue;
      ofKind[totals.kind[i]] += steps.length ? totals.typical_ns[i] / steps.length : totals.ns[i];
      count += totals.count[i];
    }
    if (!count) return "nothing found";
    const parts = kinds.flatMap((kind, i) =>
      ofKind[i] ? [`${kind.label} ${formatTime(ofKind[i])}`] : [],
    );
    const when = steps.length ? "per typical step" : "in all";
    return [
      `${formatCount(count)} found`,
      ...(parts.length ? [`${parts.join(", ")} ${when}`] : []),
    ].join(": ");
  }

  // Chooses the next match in the order of time, after the chosen interval or what is visible.
  move(direction) {
    const { matches, chosen } = this.timeline;
    if (!matches) return;
    const { begin, name, module, line } = this.run.intervals;
    const start = chosen >= 0 ? begin[chosen] : direction > 0 ? this.view.begin - 1 : this.view.end;
    // Of equal times, the order of the intervals decides.
    const isAfter = (i, time, other) => begin[i] > time || (begin[i] === time && i > other);
    let best = -1;
    let first = -1;
    for (let i = 0; i < begin.length; i += 1) {
      if (!(matches[name[i]] || matches[module[i]] || matches[line[i]])) continue;
      const isBetter = (than) =>
        than < 0 || (direction > 0 ? isAfter(than, begin[i], i) : isAfter(i, begin[than], than));
      if (isBetter(first)) first = i;
      const isBeyond =
        direction > 0 ? isAfter(i, start, chosen) : i !== chosen && !isAfter(i, start, chosen);
      if (isBeyond && isBetter(best)) best = i;
    }
    const found = best >= 0 ? best : first; // from the other end, after the last
    if (found < 0) return;
    this.timeline.choose(found);
    this.timeline.reveal(found);
    this.details.showChosen();
  }

  clear() {
    this.input.value = "";
    this.look();
    this.timeline.canvas.focus({ preventScroll: true });
  }
}
