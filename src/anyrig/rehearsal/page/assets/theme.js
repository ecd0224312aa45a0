// Light and dark: as the system, or as chosen here; light on paper. The colours themselves are in
// page.css.

const themes = ["as the system", "light", "dark"];

function startTheme(onChange) {
  const button = find("theme");
  let chosen = 0;
  button.addEventListener("click", () => {
    chosen = (chosen + 1) % themes.length;
    if (chosen) document.documentElement.dataset.theme = themes[chosen];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${themes[chosen]}`;
    onChange();
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", onChange);
}

function readColours(run) {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const colours = Object.fromEntries(
    ["back", "ink", "faint", "rule", "row", "path", "accent"].map((name) => [name, read(name)]),
  );
  colours.kinds = run.kinds.map((kind) => read(kind.name));
  colours.shades = colours.kinds.map((colour) =>
    [0, 0.1, -0.1, 0.19, -0.18].map((by) => mix(colour, by)),
  );
  colours.labels = colours.shades.map((shades) =>
    shades.map((shade) => (luminance(shade) > 0.27 ? "#101418" : "#ffffff")),
  );
  return colours;
}

// A colour of six digits, mixed with white (by > 0) or black (by < 0).
function mix(colour, by) {
  const target = by > 0 ? 255 : 0;
  const parts = channels(colour).map((part) => Math.round(part + (target - part) * Math.abs(by)));
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function luminance(colour) {
  const [red, green, blue] = channels(colour).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
