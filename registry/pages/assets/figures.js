// Figures by plotly: colors, axes, arrow keys, legends, and charts whose data is in the page.
"use strict";

// The hues of Okabe and Ito, which color-blind readers tell apart, darker on white and lighter on black.
const HUES = {
  light: ["#0072b2", "#d55e00", "#00805c", "#b8558f", "#a87400", "#3f93cf", "#5f6773"],
  dark: ["#5bb4f0", "#f5894a", "#37c79b", "#e59cc8", "#edb634", "#9ad4ff", "#aeb7c2"],
};
const DASHES = ["solid", "dash", "dot", "dashdot"]; // each repeats the hues
const PLOT = { displayModeBar: false, responsive: false, doubleClick: "autosize" };
const [FAINT, PALER] = [0.45, 0.12]; // opacity of lines of less interest, and of those not pointed at
const NEAR = "300px"; // figures are drawn when they are this near to the visible part of the page

const figures = {
  drawn: new Map(), // plot element -> {draw, isNear, isStale}
  seen: null,

  /** Returns the color of the line with a number, in the current theme. */
  color(number) {
    const hues = HUES[vortaro.isDark() ? "dark" : "light"];
    return hues[number % hues.length];
  },

  /** Returns the dash pattern of the line with a number. */
  dash(number) {
    return DASHES[Math.floor(number / HUES.light.length) % DASHES.length];
  },

  /** Returns text without characters that plotly reads as markup. */
  plain(text) {
    return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "% {");
  },

  /** Formats a value in five digits, of which none is left out, so that values below each other are aligned. */
  value(value) {
    const isShort = value === null || value === undefined || Number.isInteger(value);
    const size = Math.abs(value);
    return isShort || size >= 1e6 || size < 1e-3 ? figures.number(value) : value.toPrecision(5);
  },

  /** Formats a number in at most five digits. */
  number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "-";
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size >= 1e6 || size < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  },

  axis(title, { isLog = false, ...more } = {}) {
    const line = vortaro.color("line");
    return {
      title: { text: figures.plain(title), standoff: 8, font: { size: 12, color: vortaro.color("soft") } },
      type: isLog ? "log" : "linear",
      gridcolor: line, linecolor: vortaro.color("line-strong"), tickcolor: line, zeroline: false, automargin: true,
      tickfont: { size: 11, color: vortaro.color("soft") }, exponentformat: "power", nticks: 7,
      ...more,
    };
  },

  layout(x, y, more = {}) {
    const [text, back] = [vortaro.color("text"), vortaro.color("back")];
    return {
      autosize: true,
      margin: { l: 48, r: 10, t: 8, b: 36 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false, hovermode: false,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      hoverlabel: { bgcolor: back, bordercolor: vortaro.color("line-strong"), font: { size: 12, color: text }, namelength: -1 },
      xaxis: x,
      yaxis: y,
      ...more,
    };
  },

  /** Registers a plot: `draw(plot)` is called when the plot is near the visible part, and after `redraw`. */
  register(plot, draw) {
    figures.seen ??= new IntersectionObserver(figures.onVisible, { rootMargin: NEAR });
    figures.drawn.set(plot, { draw, isNear: false, isStale: true });
    figures.seen.observe(plot);
    figures.resized.observe(plot);
    plot.addEventListener("keydown", (event) => figures.onKey(plot, event));
    for (const name of ["pointermove", "pointerdown"]) {
      plot.addEventListener(name, (event) => readout.onPointer(plot, event));
    }
    plot.addEventListener("pointerleave", (event) => event.pointerType === "touch" || readout.hide());
    plot.addEventListener("blur", () => readout.hide());
  },

  onVisible(entries) {
    for (const entry of entries) {
      const figure = figures.drawn.get(entry.target);
      figure.isNear = entry.isIntersecting;
      if (figure.isNear && figure.isStale) figures.drawNow(entry.target);
    }
  },

  drawNow(plot) {
    const figure = figures.drawn.get(plot);
    figure.isStale = false;
    figure.draw(plot);
  },

  /** Draws plots again: now if they are near the visible part, else when they become so. */
  redraw(plots = figures.drawn.keys()) {
    for (const plot of plots) {
      const figure = figures.drawn.get(plot);
      figure.isStale = true;
      if (figure.isNear) figures.drawNow(plot);
    }
  },

  show(plot, traces, layout) {
    Plotly.react(plot, traces, layout, PLOT);
  },

  resized: new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.data && target.offsetWidth) Plotly.Plots.resize(target);
  }),

  resetZoom(plot) {
    if (plot.data) Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
  },

  /** Moves the readout by arrow keys; Home and End move it to the ends, and Escape removes it. */
  onKey(plot, event) {
    const places = [...new Set(readout.lines(plot).flatMap((trace) => Array.from(trace.x)))].filter((x) => x !== null);
    if (!places.length) return;
    places.sort((a, b) => a - b);
    const at = plot.dataset.at === undefined ? -1 : Number(plot.dataset.at);
    const stride = event.shiftKey ? Math.max(1, Math.round(places.length / 20)) : 1;
    const left = at < 0 ? places.length - 1 : at - stride;
    const next = { ArrowRight: at + stride, ArrowLeft: left, Home: 0, End: places.length - 1 }[event.key];
    if (event.key === "Escape") readout.hide();
    if (next === undefined) return;
    event.preventDefault();
    plot.dataset.at = Math.min(Math.max(next, 0), places.length - 1);
    const status = plot.parentElement.querySelector("[role=status]");
    status.textContent = readout.show(plot, places[plot.dataset.at]);
  },

  /** Draws a chart that registry.pages.figures.chart has written: lines, areas or bars. */
  chart(plot) {
    const chart = vortaro.data(plot.dataset.chart);
    const isLog = (name) => chart[name].log !== (plot.closest("figure").dataset[`${name}log`] === "switched");
    const axis = (name) => {
      const { title, ticks, labels, format, range } = chart[name];
      const marks = ticks ? { tickvals: ticks, ticktext: (labels ?? ticks.map(String)).map(figures.plain) } : {};
      const more = { ...marks, ...(range && !isLog(name) ? { range } : {}), ...(format ? { tickformat: format } : {}) };
      return figures.axis(title, { isLog: isLog(name), ...more });
    };
    const traces = chart.series.map((one) => figures.trace(chart, one));
    const shapes = (chart.marks ?? []).map((mark) => ({
      type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: 0, y1: 1, line: { color: vortaro.color("bad"), width: 2 },
    }));
    const isBars = chart.kind === "bars";
    const shared = { shapes, uirevision: `${isLog("x")} ${isLog("y")}` }; // keeps the zoom when colors change
    const more = isBars ? { barmode: "stack", hovermode: "closest", bargap: 0.3, ...shared } : shared;
    const y = isBars ? { ...axis("y"), showticklabels: false, showgrid: false } : axis("y");
    figures.show(plot, traces, figures.layout(axis("x"), y, more));
  },

  trace(chart, one) {
    const color = figures.color(one.color);
    const opacity = one.faint ? FAINT : 1;
    const name = figures.plain(one.name);
    if (chart.kind === "bars") {
      const text = `${name}: ${figures.plain(one.text ?? figures.number(one.x[0]))}<extra></extra>`;
      return { type: "bar", orientation: "h", x: one.x, y: [0], name, opacity, marker: { color }, hovertemplate: text };
    }
    if (chart.kind === "areas") {
      const line = { color, width: 1, dash: "solid", shape: one.steps ? "hvh" : "linear" };
      return { type: "scatter", mode: "lines", x: one.x, y: one.y, name, meta: one.name, line, opacity, stackgroup: "all", fillcolor: color };
    }
    const line = { color, width: one.faint ? 1.2 : 2, dash: one.dashed ? "dash" : "solid", shape: one.steps ? "hvh" : "linear" };
    const symbols = one.x.map((_, index) => (index === one.best ? "star" : "circle"));
    const sizes = one.x.map((_, index) => (index === one.best ? 13 : 5));
    return {
      type: "scatter", mode: one.points ? "lines+markers" : "lines", x: one.x, y: one.y, name, meta: one.name, line, opacity,
      marker: { color, symbol: symbols, size: sizes, opacity: 1, line: { width: 0 } },
    };
  },

  /** Connects the buttons of a static chart, and draws it. */
  openChart(plot) {
    const figure = plot.closest("figure");
    const chart = vortaro.data(plot.dataset.chart);
    figures.register(plot, figures.chart);
    for (const button of figure.querySelectorAll("button[data-log]")) {
      const name = button.dataset.log;
      button.addEventListener("click", () => {
        const isOn = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", isOn);
        figure.dataset[`${name}log`] = isOn === chart[name].log ? "" : "switched";
        figures.redraw([plot]);
      });
    }
    figure.querySelector("button[data-reset]")?.addEventListener("click", () => figures.resetZoom(plot));
    const list = figure.querySelector("ul.legend");
    chart.series.forEach((one, index) => {
      const set = (opacities) => plot.data && Plotly.restyle(plot, { opacity: opacities });
      const all = (fade) => chart.series.map((other, at) => (fade && at !== index ? PALER : other.faint ? FAINT : 1));
      const label = one.text ? `${one.name} ${one.text}` : one.name;
      list?.append(figures.key(label, one.color, { dashed: one.dashed }, (isOn) => set(all(isOn))));
    });
  },

  /** Returns an entry of a legend; `highlight(isOn)` is called when it is pointed at, focused or left. */
  key(name, color, { dashed = false, pressed = null, press = null } = {}, highlight) {
    const swatch = vortaro.element("span", { class: dashed ? "swatch dashed" : "swatch", "aria-hidden": "true" });
    const button = vortaro.element("button", { type: "button", "aria-pressed": pressed === null ? null : String(pressed) }, ...(color === null ? [] : [swatch]), name);
    const paint = () => color !== null && swatch.style.setProperty("--color", figures.color(color));
    paint();
    vortaro.onTheme(paint);
    for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => highlight(true));
    for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => highlight(false));
    if (press) {
      button.addEventListener("click", () => {
        const isOn = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", isOn);
        press(isOn);
      });
    }
    return vortaro.element("li", {}, button);
  },
};

document.querySelectorAll("[data-chart]").forEach(figures.openChart);
vortaro.onTheme(() => figures.redraw());
