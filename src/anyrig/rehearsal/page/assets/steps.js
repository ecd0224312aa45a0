// The steps as bars; a click shows a step. Grey ones are left out of the typical step.

class Steps {
  constructor(run, view) {
    this.run = run;
    this.view = view;
    this.chosen = -1;
    this.box = find("steps");
    const later = run.steps.filter((step) => !step.is_first);
    // The first steps may be much longer than the others; they are cut off.
    const longest =
      1.1 *
      Math.max(...(later.length ? later : run.steps).map((step) => step.end_ns - step.begin_ns), 1);
    const every = Math.ceil(run.steps.length / 25);
    this.buttons = run.steps.map((step, index) => {
      const duration = step.end_ns - step.begin_ns;
      const button = make("button", {
        type: "button",
        role: "radio",
        "aria-checked": "false",
        tabindex: "-1",
      });
      button.style.setProperty("--height", Math.min(Math.max(duration / longest, 0.03), 1));
      button.classList.toggle("is-cut", duration > longest);
      const isTypical = run.typical_steps.includes(step.number);
      button.classList.toggle("is-typical", isTypical);
      const notes = [`step ${step.number}`, formatTime(duration)];
      if (step.samples !== null && duration)
        notes.push(`${formatNumber((step.samples * 1e9) / duration)} samples/s`);
      if (step.waits) notes.push(`waits ${step.waits} times for a device`);
      if (!isTypical) notes.push(step.is_first ? "one of the first" : "not typical");
      button.title = notes.join(", ");
      button.setAttribute("aria-label", button.title);
      if (index % every === 0) button.append(make("span", {}, String(step.number)));
      button.addEventListener("click", () => this.show(index));
      return button;
    });
    this.box.append(make("span", { class: "caption" }, "Steps, by duration"), ...this.buttons);
    this.box.hidden = !run.steps.length;
    if (run.steps.length > 150) this.box.style.gap = "0";
    this.box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.move(by);
      this.buttons[this.chosen].focus();
    });
    view.onChange(() => this.mark());
  }

  show(index) {
    const step = this.run.steps[index];
    if (step) this.view.fit(step.begin_ns, step.end_ns);
    else this.view.fit(0, this.run.end);
  }

  showTypical() {
    const typical = this.run.steps.findIndex((step) =>
      this.run.typical_steps.includes(step.number),
    );
    this.show(typical >= 0 ? typical : this.run.steps.length - 1);
  }

  move(by) {
    this.show(Math.min(Math.max(this.chosen + by, 0), this.run.steps.length - 1));
  }

  // The chosen step is the one in the middle of what is visible.
  mark() {
    const middle = (this.view.begin + this.view.end) / 2;
    const found = this.run.steps.findIndex(
      (step) => step.begin_ns <= middle && middle < step.end_ns,
    );
    this.chosen = found >= 0 ? found : Math.max(this.chosen, 0);
    this.buttons.forEach((button, index) => {
      const { begin_ns: begin, end_ns: end } = this.run.steps[index];
      // At the edge, a step counts as visible from a thousandth of the view on.
      const isVisible =
        begin < this.view.end - 0.02 * this.view.duration &&
        end > this.view.begin + 0.02 * this.view.duration;
      button.setAttribute(
        "aria-checked",
        String(isVisible && (this.view.duration > 1.5 * (end - begin) || index === found)),
      );
      button.tabIndex = index === this.chosen ? 0 : -1;
    });
  }

  at(time) {
    return this.run.steps.find((step) => step.begin_ns <= time && time < step.end_ns);
  }
}
