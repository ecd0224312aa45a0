// Draws one lane of the time line into a canvas, at any zoom.
//
// An interval of a pixel or more is a box. Narrower ones share columns of one pixel: the height of
// each colour in a column is the share of its time, so that a view from afar shows how busy the
// lane is.

class Painter {
  constructor(run) {
    this.run = run;
    this.shares = new Float64Array(run.kinds.length);
  }

  setTheme(context, colours) {
    this.colours = colours;
    this.idle = hatch(context, colours.rule, null);
    this.waiting = hatch(
      context,
      colours.kinds[this.run.kinds.findIndex((kind) => kind.name === "wait")],
      colours.row,
    );
  }

  // `place` has left, width, top and height; `matches` is null or whether each text matches.
  paintLane(context, lane, view, place, matches) {
    const { begin, end, kind, name, module, line, gap_ns: gap } = this.run.intervals;
    const scale = place.width / view.duration;
    let column = -1;
    let hasColumn = false;
    const flush = () => {
      if (hasColumn) this.paintColumn(context, place.left + column, place);
      hasColumn = false;
    };
    const first = firstEndingAfter(end, lane.from, lane.to, view.begin);
    for (let i = first; i < lane.to && begin[i] < view.end; i += 1) {
      const x0 = Math.max((begin[i] - view.begin) * scale, 0);
      const x1 = Math.min((end[i] - view.begin) * scale, place.width);
      const isDim =
        matches !== null && !(matches[name[i]] || matches[module[i]] || matches[line[i]]);
      if (x1 - x0 >= 1) {
        flush();
        this.paintBox(
          context,
          i,
          place,
          x0,
          x1,
          isDim,
          gap[i] ? 1 - gap[i] / (end[i] - begin[i]) : 1,
        );
        continue;
      }
      let from = x0;
      while (from < x1 || from === x0) {
        const pixel = Math.min(Math.floor(from), place.width - 1);
        if (!hasColumn || pixel !== column) {
          flush();
          column = pixel;
          hasColumn = true;
          this.shares.fill(0);
          this.isDim = true;
        }
        const to = Math.min(x1, pixel + 1);
        this.shares[kind[i]] += Math.max(to - from, 1e-6);
        if (!isDim) this.isDim = false;
        if (to >= x1) break;
        from = to;
      }
    }
    flush();
  }

  paintColumn(context, x, place) {
    let whole = 0;
    for (const share of this.shares) whole += share;
    // A lone short interval must remain visible.
    const factor = whole < 0.15 ? 0.15 / whole : whole > 1 ? 1 / whole : 1;
    let bottom = place.top + place.height;
    context.globalAlpha = this.isDim ? 0.18 : 1;
    this.shares.forEach((share, kind) => {
      if (!share) return;
      const height = share * factor * place.height;
      context.fillStyle = this.colours.kinds[kind];
      context.fillRect(x, bottom - height, 1, height);
      bottom -= height;
    });
    context.globalAlpha = 1;
  }

  paintBox(context, i, place, x0, x1, isDim, busy) {
    const { kind, name, module } = this.run.intervals;
    const shade = (name[i] * 7) % 5;
    const isWait = this.run.kinds[kind[i]].name === "wait";
    const width = x1 - x0;
    const gap = width > 4 ? 0.6 : 0;
    context.globalAlpha = isDim ? 0.18 : 1;
    context.fillStyle = isWait ? this.waiting : this.colours.shades[kind[i]][shade];
    const height = place.height * Math.max(busy, 0.15);
    context.fillRect(place.left + x0, place.top + place.height - height, width - gap, height);
    if (width > 34 && place.height >= 11) {
      const text =
        this.run.text(name[i]) ?? this.run.text(module[i]) ?? this.run.kinds[kind[i]].label;
      const [left, middle] = [place.left + x0 + 4, place.top + place.height / 2 + 0.5];
      if (isWait) {
        const shown = Math.min(context.measureText(shorten(text)).width, width - 8);
        context.fillStyle = this.colours.row;
        context.fillRect(left - 2, place.top + 1, shown + 4, place.height - 2);
      }
      context.fillStyle = isWait ? this.colours.ink : this.colours.labels[kind[i]][shade];
      paintText(context, shorten(text), left, middle, width - 8);
    }
    context.globalAlpha = 1;
  }
}

// Diagonal lines as a pattern; `back` may be null.
function hatch(context, colour, back) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  if (back) {
    pen.fillStyle = back;
    pen.fillRect(0, 0, 8, 8);
  }
  pen.strokeStyle = colour;
  pen.lineWidth = back ? 2.6 : 1;
  for (const at of [-8, 0, 8]) {
    pen.moveTo(at, 8);
    pen.lineTo(at + 8, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function shorten(text) {
  return text.startsWith("aten::") ? text.slice(6) : text;
}

// As much of the text as fits; nothing, if that is less than three characters.
function paintText(context, text, x, y, width) {
  let fits = Math.min(text.length, Math.floor(width / 3));
  let shown = text.slice(0, fits);
  for (
    let size = context.measureText(shown).width;
    size > width;
    size = context.measureText(shown).width
  ) {
    fits = Math.min(fits - 1, Math.floor((fits * width) / size));
    if (fits < 3) return;
    shown = `${text.slice(0, fits - 1)}…`;
  }
  if (fits >= 3 || fits === text.length) context.fillText(shown, x, y);
}
