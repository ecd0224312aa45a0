// Reads what payload.py wrote: a header in JSON, then columns of numbers in planes of bytes.

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function unpack(bytes, start, [offset, width, length]) {
  const Type =
    width <= 1 ? Uint8Array : width <= 2 ? Uint16Array : width <= 4 ? Uint32Array : Float64Array;
  const numbers = new Type(length);
  let factor = 1;
  for (let plane = 0; plane < width; plane += 1) {
    const from = start + offset + plane * length;
    for (let i = 0; i < length; i += 1) numbers[i] += bytes[from + i] * factor;
    factor *= 256;
  }
  return numbers;
}

// Indexes of texts are stored plus one, so that 0 is none.
async function readRun() {
  const bytes = await inflate(find("data").textContent);
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const run = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  const column = (name) => unpack(bytes, 4 + size, run.columns[name]);
  const names = ["gap_ns", "kind", "name", "module", "line", "bytes", "flow", "count"];
  run.intervals = Object.fromEntries(names.map((name) => [name, column(name)]));
  readTimes(
    run,
    column("pause_ns"),
    column("duration_ns"),
    column("lane_track"),
    column("lane_length"),
  );
  readPaths(run, column);
  run.totals = Object.fromEntries(
    ["ns", "typical_ns", "count", "kind", "name", "module", "line"].map((name) => [
      name,
      column(`total_${name}`),
    ]),
  );
  run.text = (index) => (index ? run.texts[index - 1] : null);
  return run;
}

// Lanes are ranges [from, to) of the intervals. The intervals of a lane do not overlap.
function readTimes(run, pauses, durations, tracks, lengths) {
  const begin = new Float64Array(pauses.length);
  const end = new Float64Array(pauses.length);
  run.lanes = [];
  let from = 0;
  let last = 0;
  tracks.forEach((track, number) => {
    const to = from + lengths[number];
    let now = 0;
    for (let i = from; i < to; i += 1) {
      begin[i] = now + pauses[i];
      now = end[i] = begin[i] + durations[i];
    }
    run.lanes.push({ track, from, to });
    last = Math.max(last, now);
    from = to;
  });
  run.intervals.begin = begin;
  run.intervals.end = end;
  run.end = Math.max(last, 1, ...run.steps.map((step) => step.end_ns));
}

function readPaths(run, column) {
  const [ns, kind, track, name, module, line] = [
    "ns",
    "kind",
    "track",
    "name",
    "module",
    "line",
  ].map((part) => column(`path_${part}`));
  let i = 0;
  for (const step of run.steps) {
    let begin = step.begin_ns;
    step.path = Array.from({ length: step.path_length }, () => {
      const segment = {
        begin,
        end: begin + ns[i],
        kind: kind[i],
        track: track[i] - 1,
        name: name[i],
        module: module[i],
        line: line[i],
      };
      begin = segment.end;
      i += 1;
      return segment;
    });
  }
}

// The index of the first interval from `from` on that ends after the time.
function firstEndingAfter(ends, from, to, time) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (ends[middle] > time) to = middle;
    else from = middle + 1;
  }
  return from;
}
