// Numbers as text, and elements with text. Text from the facts enters the page only through here,
// as text and never as markup.

function formatNumber(number) {
  const size = Math.abs(number);
  if (size >= 999.5) return formatCount(Math.round(number));
  return number.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function formatCount(count) {
  return count.toLocaleString("en").replaceAll(",", "\u202f");
}

function formatTime(ns) {
  const size = Math.abs(ns);
  if (size === 0) return "0 s";
  if (size >= 1e9) return `${formatNumber(ns / 1e9)} s`;
  if (size >= 1e6) return `${formatNumber(ns / 1e6)} ms`;
  if (size >= 1e3) return `${formatNumber(ns / 1e3)} µs`;
  return `${formatNumber(ns)} ns`;
}

function formatBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return unit ? `${count.toFixed(2)} ${units[unit]}` : `${count} B`;
}

function formatShare(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`;
}

function find(id) {
  return document.getElementById(id);
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A list of terms; pairs whose text is null are left out.
function makeTerms(pairs) {
  const list = make("dl");
  for (const [term, text] of pairs) {
    if (text !== null && text !== "") list.append(make("dt", {}, term), make("dd", {}, text));
  }
  return list;
}

// Ticks at round times, about `spacing` pixels apart.
function roundSpacing(atLeast) {
  const power = 10 ** Math.floor(Math.log10(atLeast));
  for (const factor of [1, 2, 5]) if (factor * power >= atLeast) return factor * power;
  return 10 * power;
}
