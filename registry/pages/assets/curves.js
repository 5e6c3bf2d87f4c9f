// Curves of one run, or of several over each other: axes, smoothing, zoom, splits, values, and the state in the URL.
"use strict";

const AXES = { step: "step", tokens: "tokens", flops: "FLOPs", seconds: "training time" };
const CLOCK = [[7200, 3600, "h"], [180, 60, "min"], [0, 1, "s"]]; // from so many seconds on: divisor, unit
const SPLITS = ["train", "validation", "evals"];
const SMOOTHED = "train"; // means over few batches; evaluations are not smoothed
const EXACT = ["learning_rate", "sequence_length", "skipped_updates"]; // set, not measured: not smoothed
const PALE = 0.12;

class Curves {
  /** Connects the controls and figures of registry.pages.curves.panel; `several` runs have a color each. */
  constructor(form, several) {
    this.form = form;
    this.several = several;
    this.runs = []; // {name, label, color, data}
    this.hidden = new Set(); // splits
    this.kept = null; // name of the run that a click highlights
    this.pointed = null; // name of the run or split that is highlighted
    this.range = null; // of x, after a zoom
    this.ownLog = new Map(); // metric -> logarithmic, where it differs from the choice for all
    this.plots = new Map();
    this.onState = () => {};
    for (const figure of document.querySelectorAll("figure[data-metric]")) this.openFigure(figure);
    form.addEventListener("input", () => this.onInput());
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("button[data-reset]").addEventListener("click", () => this.zoom(null));
    this.splitList = form.querySelector("ul.splits");
    this.runList = form.querySelector("ul.chosen");
  }

  openFigure(figure) {
    const plot = figure.querySelector(".plot");
    const metric = figure.dataset.metric;
    this.plots.set(metric, { plot, figure });
    figures.register(plot, () => this.draw(metric));
    figure.querySelector("button[data-log]").addEventListener("click", (event) => {
      const isOn = event.currentTarget.getAttribute("aria-pressed") !== "true";
      event.currentTarget.setAttribute("aria-pressed", isOn);
      this.ownLog.set(metric, isOn);
      figures.redraw([plot]);
    });
    figure.querySelector("button[data-enlarge]").addEventListener("click", (event) => {
      const isOn = figure.classList.toggle("enlarged");
      event.currentTarget.setAttribute("aria-pressed", isOn);
    });
    figure.querySelector("details").addEventListener("toggle", () => this.fillValues(metric));
  }

  get state() {
    const { x, logx, logy, smooth } = this.form.elements;
    return { x: x.value, logx: logx.checked, logy: logy.checked, smooth: Number(smooth.value) };
  }

  /** Sets the controls from the parameters of a URL; missing ones are set to their defaults. */
  restore(parameters) {
    const { x, logx, logy, smooth } = this.form.elements;
    const chosen = [...x].find((input) => input.value === parameters.get("x")) ?? x[0];
    chosen.checked = true;
    logx.checked = (parameters.get("log") ?? "").includes("x");
    logy.checked = (parameters.get("log") ?? "").includes("y");
    smooth.value = parameters.get("smooth") ?? 0;
    this.hidden = new Set((parameters.get("hide") ?? "").split(",").filter(Boolean));
    this.onInput();
  }

  /** Writes what differs from the defaults into the parameters of a URL. */
  store(parameters) {
    const { x, logx, logy, smooth } = this.state;
    if (x !== "step") parameters.set("x", x);
    if (logx || logy) parameters.set("log", `${logx ? "x" : ""}${logy ? "y" : ""}`);
    if (smooth) parameters.set("smooth", smooth);
    if (this.hidden.size) parameters.set("hide", [...this.hidden].join(","));
  }

  onInput() {
    const state = this.state;
    this.form.querySelector("output").textContent = state.smooth.toFixed(2);
    if (this.before?.x !== state.x || this.before?.logx !== state.logx) this.range = null;
    if (this.before?.logy !== state.logy) this.ownLog.clear();
    for (const [metric, { figure }] of this.plots) {
      figure.querySelector("button[data-log]").setAttribute("aria-pressed", this.isLog(metric));
    }
    this.before = state;
    this.redraw();
    this.onState();
  }

  /** Shows other runs. */
  show(runs) {
    this.runs = runs;
    const has = (name) => !runs.length || runs.some((run) => run.data.axes[name]);
    for (const input of this.form.elements.x) input.closest("label").hidden = !has(input.value);
    for (const [metric, { figure }] of this.plots) {
      figure.hidden = runs.length > 0 && !runs.some((run) => run.data.series[metric]);
    }
    const all = new Set(runs.flatMap((run) => Object.values(run.data.series).flatMap(Object.keys)));
    const shown = SPLITS.filter((split) => all.has(split));
    if (shown.join() !== this.shownSplits) {
      this.shownSplits = shown.join();
      this.splitList.replaceChildren(...shown.map((split) => this.splitKey(split)));
    }
    if (this.runList && runs.map((run) => run.name).join() !== this.shownRuns) {
      this.shownRuns = runs.map((run) => run.name).join();
      this.runList.replaceChildren(...runs.map((run) => this.runKey(run)));
    }
    this.redraw();
  }

  /** Returns the entry of a run in the legend; a click keeps it highlighted. */
  runKey(run) {
    const press = (isOn) => {
      this.kept = isOn ? run.name : null;
      for (const other of this.runList.querySelectorAll("[aria-pressed=true]")) {
        if (other.textContent !== run.label) other.setAttribute("aria-pressed", "false");
      }
      this.point(this.kept);
    };
    const options = { pressed: this.kept === run.name, press, dashed: figures.dash(run.color) !== "solid" };
    return figures.key(run.label, run.color, options, (isOn) => this.point(isOn ? run.name : null));
  }

  splitKey(split) {
    const press = (isOn) => {
      this.hidden[isOn ? "delete" : "add"](split);
      this.redraw();
      this.onState();
    };
    const options = { pressed: !this.hidden.has(split), press, dashed: false };
    const color = this.several ? null : SPLITS.indexOf(split);
    return figures.key(split, color, options, (isOn) => this.point(isOn ? split : null));
  }

  /** Highlights a run or a split; the others become pale. */
  point(name) {
    this.pointed = name ?? this.kept;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.redraw());
  }

  zoom(range) {
    this.range = range;
    this.redraw();
  }

  redraw() {
    figures.redraw([...this.plots.values()].map(({ plot }) => plot));
    for (const [metric, { figure }] of this.plots) if (figure.querySelector("details").open) this.fillValues(metric);
  }

  isLog(metric) {
    return this.ownLog.get(metric) ?? this.state.logy;
  }

  /** Divisor and unit of times, the same in all figures. */
  get clock() {
    const last = Math.max(0, ...this.runs.map((run) => run.data.axes.seconds?.at(-1) ?? 0));
    return CLOCK.find(([least]) => last >= least);
  }

  /** Returns the lines of a metric: {run, split, x, y, raw} with raw values where `y` is smoothed. */
  lines(metric) {
    const { x: axis, smooth } = this.state;
    const found = [];
    for (const run of this.runs) {
      for (const split of SPLITS) {
        const series = run.data.series[metric]?.[split];
        if (!series || this.hidden.has(split)) continue;
        const [steps, values] = series;
        const divisor = axis === "seconds" ? this.clock[1] : 1;
        const places = place(run.data.axes, axis, steps).map((at) => (at === null ? null : at / divisor));
        const isSmooth = smooth > 0 && split === SMOOTHED && !EXACT.includes(metric) && steps.length > 2;
        found.push({ run, split, x: places, y: isSmooth ? smoothed(values, smooth) : values, raw: isSmooth ? values : null });
      }
    }
    return found;
  }

  draw(metric) {
    const { plot, figure } = this.plots.get(metric);
    const lines = this.lines(metric);
    const state = this.state;
    const name = figure.querySelector(".name").textContent;
    const title = state.x === "seconds" ? `${AXES.seconds}, ${this.clock[2]}` : AXES[state.x];
    const ticks = state.x === "seconds" ? {} : { tickformat: "~s" };
    const x = figures.axis(title, { isLog: state.logx, rangemode: "nonnegative", ...ticks });
    const y = figures.axis("", { isLog: this.isLog(metric), fixedrange: true });
    if (this.range) Object.assign(x, { range: [...this.range] });
    const within = this.range && fit(lines, this.range, state.logx, this.isLog(metric));
    if (within) Object.assign(y, { range: within });
    const hasEvaluations = lines.some((line) => line.split !== "train");
    const traces = lines.flatMap((line) => this.traces(line, this.several && hasEvaluations));
    figures.show(plot, traces, figures.layout(x, y));
    const shown = lines.map((line) => this.nameOf(line)).join(", ");
    plot.setAttribute("aria-label", `${name} by ${title}: ${shown || "no values"}. Arrow keys show values.`);
    if (!plot.dataset.isOpen) {
      plot.dataset.isOpen = "yes";
      plot.on("plotly_relayout", (event) => this.onZoom(event));
    }
  }

  onZoom(event) {
    if (event["xaxis.autorange"]) this.zoom(null);
    else if (event["xaxis.range[0]"] !== undefined) this.zoom([event["xaxis.range[0]"], event["xaxis.range[1]"]]);
  }

  nameOf({ run, split }) {
    return this.several ? `${run.label}${split === "train" ? "" : ` ${split}`}` : split;
  }

  /** Returns the lines of plotly for a line; `isBusy` if training curves shall not hide those of evaluations. */
  traces(line, isBusy) {
    const number = this.several ? line.run.color : SPLITS.indexOf(line.split);
    const color = figures.color(number);
    const isPale = this.pointed !== null && ![line.run.name, line.split].includes(this.pointed);
    const hasPoints = line.split !== "train" || line.x.length === 1;
    const meta = this.nameOf(line);
    const shared = { type: "scatter", x: line.x, connectgaps: false };
    const width = this.pointed !== null && !isPale ? 2.6 : hasPoints ? 2.2 : 1.7;
    const main = {
      ...shared, y: line.y, meta, mode: hasPoints ? "lines+markers" : "lines", opacity: isPale ? PALE : isBusy && !hasPoints && this.pointed === null ? 0.6 : 1,
      line: { color, width, dash: this.several ? figures.dash(number) : "solid" },
      marker: { color, size: 5.5, maxdisplayed: 40, symbol: line.split === "evals" ? "diamond" : "circle" },
    };
    if (!line.raw) return [main];
    return [{ ...shared, y: line.raw, mode: "lines", opacity: isPale ? 0.05 : 0.25, line: { color, width: 1 }, hoverinfo: "skip" }, main];
  }

  /** Fills the table below a figure: last, lowest and highest value of each line, as recorded. */
  fillValues(metric) {
    const details = this.plots.get(metric).figure.querySelector("details");
    if (!details.open) return;
    const cell = (text, isNumber) => vortaro.element("td", { class: isNumber ? "n" : null }, text);
    const head = ["", this.state.x, "last", "lowest", "highest"].map((text) =>
      text ? vortaro.element("th", { scope: "col", class: "n" }, text) : vortaro.element("td"),
    );
    const rows = this.lines(metric).map((line) => {
      const values = (line.raw ?? line.y).filter((value) => value !== null);
      const last = (line.raw ?? line.y).findLastIndex((value) => value !== null);
      const numbers = [line.x[last], values.at(-1), Math.min(...values), Math.max(...values)];
      const name = vortaro.element("th", { scope: "row" }, this.nameOf(line));
      return vortaro.element("tr", {}, name, ...numbers.map((number) => cell(figures.value(number), true)));
    });
    const table = vortaro.element("table", {}, vortaro.element("thead", {}, vortaro.element("tr", {}, ...head)), vortaro.element("tbody", {}, ...rows));
    const name = this.plots.get(metric).figure.querySelector(".name").textContent;
    const box = vortaro.element("div", { class: "scroll", role: "group", tabindex: "0", "aria-label": `Values of ${name}` }, table);
    details.querySelector(".scroll")?.remove();
    details.append(box);
  }
}

/** Returns the places of steps on an axis, linear between the lines of training. */
function place(axes, name, steps) {
  if (name === "step") return steps;
  if (!axes[name]) return steps.map(() => null);
  const [known, values] = [[0, ...axes.step], [0, ...axes[name]]];
  let right = 1;
  return steps.map((step) => {
    while (right < known.length - 1 && known[right] < step) right += 1;
    const width = known[right] - known[right - 1];
    const share = width ? Math.min((step - known[right - 1]) / width, 1) : 1;
    return values[right - 1] + share * (values[right] - values[right - 1]);
  });
}

/** Returns exponential means with a weight of the past, not biased to 0 at the start; null stays null. */
function smoothed(values, weight) {
  let [mean, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

/** Returns the range of y that holds the lines within a range of x (exponents on logarithmic axes), or null. */
function fit(lines, [start, end], isLogX, isLogY) {
  const [least, most] = isLogX ? [10 ** start, 10 ** end] : [start, end];
  const values = lines.flatMap(({ x, y }) => y.filter((value, at) => value !== null && x[at] >= least && x[at] <= most));
  const scaled = (isLogY ? values.filter((value) => value > 0).map(Math.log10) : values);
  if (!scaled.length) return null;
  const [low, high] = scaled.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - margin, high + margin];
}

/** Returns the parameters in the part of the URL after #, or null if it holds none. */
function hashParameters() {
  return location.hash.includes("=") ? new URLSearchParams(location.hash.slice(1)) : null;
}

/** Replaces the part of the URL after #, without an entry in the history. */
function setHash(parameters) {
  const text = `#${parameters}`;
  if (text === (location.hash || "#")) return;
  try {
    history.replaceState(null, "", text);
  } catch {
    location.replace(text); // some browsers restrict files
  }
}
