// Shared by all pages: the theme, data in script tags, elements made from text.
"use strict";

const vortaro = {
  /** Returns the data that `script_data(name, value)` wrote into this page. */
  data(name) {
    return JSON.parse(document.getElementById(name).textContent);
  },

  /** Returns a new element. Children are elements or text; text is never read as HTML. */
  element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  },

  /** Returns the value of a color of style.css in the current theme, as in color("accent"). */
  color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  },

  /** Returns whether the page is dark. */
  isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },

  /** Calls `draw` whenever the colors change. */
  onTheme(draw) {
    document.addEventListener("vortaro-theme", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  },

  /** Formats a count in four digits: 820.4 k, 137.7 B. */
  amount(number) {
    return vortaro.inUnits(number, 1000, ["", " k", " M", " B", " T"]);
  },

  /** Formats bytes in binary units, four digits. */
  size(number) {
    return vortaro.inUnits(number, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
  },

  inUnits(number, base, units) {
    const digits = (power) => (power ? String(Number((number / base ** power).toPrecision(4))) : String(number));
    let power = 0;
    while (power < units.length - 1 && Math.abs(Number(digits(power))) >= base) power += 1;
    return digits(power) + units[power];
  },
};

document.querySelector("button.theme")?.addEventListener("click", () => {
  const theme = vortaro.isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("vortaro-theme", theme);
  } catch {
    // Storage can be disabled; the choice then lasts until the page is left.
  }
  document.dispatchEvent(new Event("vortaro-theme"));
});
