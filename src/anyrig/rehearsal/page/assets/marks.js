// What is drawn in the time line besides the rows: the critical path, the borders of steps, the chosen
// interval with its partners, and the measured stretch.

function paintStepBorders(timeline) {
  const { context, view } = timeline;
  context.strokeStyle = timeline.colours.faint;
  context.setLineDash([3, 3]);
  context.beginPath();
  for (const step of timeline.run.steps) {
    if (step.end_ns < view.begin || step.begin_ns > view.end) continue;
    for (const time of [step.begin_ns, step.end_ns]) {
      const x = Math.round(timeline.toX(time)) + 0.5;
      context.moveTo(x, axisHeight - 6);
      context.lineTo(x, timeline.height);
    }
  }
  context.stroke();
  context.setLineDash([]);
}

// A line below the track that the path runs through, and thin ones from track to track.
function paintPathMarks(timeline) {
  const { context } = timeline;
  let before = null;
  context.fillStyle = timeline.colours.path;
  const shortest = (0.2 * timeline.view.duration) / timeline.width;
  timeline.eachSegment((segment) => {
    const row = timeline.rowOf.get(segment.track);
    if (!row || segment.end - segment.begin < shortest) return;
    const x = timeline.toX(segment.begin);
    const y = row.bottom - 2;
    context.fillRect(x, y, Math.max(timeline.toX(segment.end) - x, 0.5), 2.5);
    if (before && before.row !== row && Math.abs(before.end - segment.begin) < 2) {
      const other = before.row.bottom - 2;
      context.globalAlpha = 0.75;
      context.fillRect(x - 0.5, Math.min(y, other), 1.2, Math.abs(y - other) + 2.5);
      context.globalAlpha = 1;
    }
    before = { row, end: segment.end };
  });
}

function paintChosen(timeline) {
  if (timeline.chosen < 0) return;
  const place = timeline.placeOf(timeline.chosen);
  const { begin, end } = timeline.run.intervals;
  const x = timeline.toX(begin[timeline.chosen]);
  const { context } = timeline;
  context.strokeStyle = timeline.colours.back;
  context.lineWidth = 4;
  const box = [
    x - 1,
    place.top - 1,
    Math.max(timeline.toX(end[timeline.chosen]) - x, 1) + 2,
    place.height + 2,
  ];
  context.strokeRect(...box);
  context.strokeStyle = timeline.colours.ink;
  context.lineWidth = 2;
  context.strokeRect(...box);
}

// Curves from the chosen interval to those of the same flow: the other end of a copy, or the
// other ranks of a collective.
function paintFlow(timeline) {
  const { context } = timeline;
  const { begin, end } = timeline.run.intervals;
  const partners = timeline.partnersOf(timeline.chosen);
  if (!partners.length) return;
  const middle = (i) => {
    const place = timeline.placeOf(i);
    return [timeline.toX((begin[i] + end[i]) / 2), place.top + place.height / 2];
  };
  const [x0, y0] = middle(timeline.chosen);
  context.strokeStyle = timeline.colours.accent;
  context.fillStyle = timeline.colours.accent;
  context.lineWidth = 1.6;
  for (const partner of partners) {
    const [x1, y1] = middle(partner);
    const bend = Math.min(60, Math.abs(y1 - y0) / 2);
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 + bend, y1, x1, y1);
    context.stroke();
    context.beginPath();
    context.arc(x1, y1, 3, 0, 7);
    context.fill();
  }
}

function paintMeasured(timeline) {
  if (!timeline.measured) return;
  const [begin, end] = timeline.measured;
  const { context } = timeline;
  const x = timeline.toX(begin);
  const width = timeline.toX(end) - x;
  context.globalAlpha = 0.14;
  context.fillStyle = timeline.colours.accent;
  context.fillRect(x, 0, width, timeline.height);
  context.globalAlpha = 1;
  context.strokeStyle = timeline.colours.accent;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, -1, width, timeline.height + 2);
}

function paintPathRow(timeline) {
  const { context, colours, path } = timeline;
  // The longest segment that begins in a column of one pixel gives it its colour.
  const longest = new Map();
  timeline.eachSegment((segment) => {
    const x0 = Math.max(timeline.toX(segment.begin), timeline.gutter);
    const width = Math.min(timeline.toX(segment.end), timeline.gutter + timeline.width) - x0;
    if (width < 1) {
      const other = longest.get(Math.floor(x0));
      if (!other || other.end - other.begin < segment.end - segment.begin)
        longest.set(Math.floor(x0), segment);
      return;
    }
    const shade = (segment.name * 7) % 5;
    context.globalAlpha = timeline.isMatch(segment) ? 1 : 0.18;
    context.fillStyle = colours.shades[segment.kind][shade];
    context.fillRect(x0, path.top, width - (width > 4 ? 0.6 : 0), path.height);
    if (width > 34) {
      const text =
        timeline.run.text(segment.module) ??
        timeline.run.text(segment.name) ??
        timeline.run.kinds[segment.kind].label;
      context.fillStyle = colours.labels[segment.kind][shade];
      paintText(context, shorten(text), x0 + 4, path.top + path.height / 2 + 0.5, width - 8);
    }
  });
  for (const [x, segment] of longest) {
    context.globalAlpha = timeline.isMatch(segment) ? 1 : 0.18;
    context.fillStyle = colours.kinds[segment.kind];
    context.fillRect(x, path.top, 1, path.height);
  }
  context.globalAlpha = 1;
}
