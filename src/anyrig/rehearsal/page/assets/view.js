// What is visible: a stretch of time, in nanoseconds. The time line shows it.

class View {
  constructor(limit) {
    this.limit = limit;
    this.begin = 0;
    this.end = limit;
    this.listeners = [];
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  get duration() {
    return this.end - this.begin;
  }

  show(begin, end) {
    const duration = Math.min(Math.max(end - begin, 20), 1.04 * this.limit);
    const middle = (begin + end) / 2;
    const slack = 0.02 * this.limit;
    begin = Math.min(Math.max(middle - duration / 2, -slack), this.limit + slack - duration);
    this.begin = begin;
    this.end = begin + duration;
    for (const listener of this.listeners) listener();
  }

  // Shows a stretch with a little room on both sides.
  fit(begin, end) {
    const room = 0.01 * (end - begin);
    this.show(begin - room, end + room);
  }

  pan(share) {
    const by = share * this.duration;
    this.show(this.begin + by, this.end + by);
  }

  // Keeps `time` where it is.
  zoom(factor, time = (this.begin + this.end) / 2) {
    const begin = time - (time - this.begin) * factor;
    this.show(begin, begin + this.duration * factor);
  }
}
