// The page of all runs: a table with check boxes and columns that sort, and the curves of the chosen runs.
"use strict";

window.vortaroRuns ??= {};
const SOON = 30; // milliseconds; runs that arrive within them are shown together

const runsPage = {
  form: document.querySelector("form[data-curves]"),
  chosen: new Set(),
  versions: {},
  sort: null, // {column, isDescending}

  get rows() {
    return [...document.querySelectorAll("table.runs tbody tr")];
  },

  open() {
    this.curves = new Curves(this.form, true);
    this.curves.onState = () => this.store();
    document.addEventListener("change", (event) => event.target.matches(".choose") && this.onChoose());
    document.addEventListener("click", (event) => this.onClick(event));
    for (const [name, isOn] of [["mouseover", true], ["focusin", true], ["mouseout", false], ["focusout", false]]) {
      document.addEventListener(name, (event) => this.onPoint(event, isOn));
    }
    document.addEventListener("vortaro-refreshed", () => this.onRefresh());
    addEventListener("hashchange", () => hashParameters() && this.restore(hashParameters()));
    vortaro.onTheme(() => this.paint());
    this.restore(hashParameters() ?? new URLSearchParams());
  },

  restore(parameters) {
    const known = this.rows.map((row) => row.dataset.run);
    const stated = parameters.getAll("run").filter((name) => known.includes(name));
    const first = this.rows.filter((row) => row.dataset.first !== undefined).map((row) => row.dataset.run);
    this.chosen = new Set(parameters.has("run") ? stated : parameters.has("none") ? [] : first);
    const [column, order] = (parameters.get("sort") ?? "").split(":");
    if (column) this.sortBy(column, order === "down");
    this.curves.restore(parameters);
    this.paint();
    this.load();
  },

  store() {
    const parameters = new URLSearchParams();
    const first = this.rows.filter((row) => row.dataset.first !== undefined).map((row) => row.dataset.run);
    const isFirst = first.length === this.chosen.size && first.every((name) => this.chosen.has(name));
    if (!isFirst) for (const name of this.chosen) parameters.append("run", name);
    if (!this.chosen.size) parameters.set("none", "1");
    if (this.sort) parameters.set("sort", `${this.sort.column}:${this.sort.isDescending ? "down" : "up"}`);
    this.curves.store(parameters);
    setHash(parameters);
  },

  onChoose() {
    this.chosen = new Set(this.rows.filter((row) => row.querySelector(".choose").checked).map((row) => row.dataset.run));
    this.store();
    this.load();
  },

  onClick(event) {
    const button = event.target.closest("[data-sort]");
    if (button) {
      const isSame = this.sort?.column === button.dataset.sort;
      this.sortBy(button.dataset.sort, isSame && !this.sort.isDescending);
      this.store();
    }
    const all = event.target.closest("[data-choose]");
    if (all) {
      const isOn = all.dataset.choose === "all";
      for (const row of this.rows) row.querySelector(".choose").checked = isOn;
      this.onChoose();
    }
  },

  onPoint(event, isOn) {
    const row = event.target.closest?.("table.runs tbody tr");
    if (!row || !this.chosen.has(row.dataset.run)) return;
    row.classList.toggle("pointed", isOn);
    this.curves.point(isOn ? row.dataset.run : null);
  },

  /** Orders the rows by the values of a column; runs without a value are last. */
  sortBy(column, isDescending) {
    this.sort = { column, isDescending };
    const heads = [...document.querySelectorAll("table.runs thead th")]; // one for each cell of a row
    const at = heads.findIndex((head) => head.querySelector("[data-sort]")?.dataset.sort === column);
    if (at < 0) return;
    heads.forEach((head, index) => {
      if (head.querySelector("[data-sort]")) head.setAttribute("aria-sort", index === at ? (isDescending ? "descending" : "ascending") : "none");
    });
    const key = (row) => row.cells[at].dataset.value ?? "";
    const order = (a, b) => {
      const [left, right] = [key(a), key(b)];
      if (!left || !right) return left ? -1 : right ? 1 : 0;
      const difference = Number(left) - Number(right);
      const sign = Number.isNaN(difference) ? left.localeCompare(right, "en", { numeric: true }) : difference;
      return isDescending ? -sign : sign;
    };
    document.querySelector("table.runs tbody").append(...this.rows.sort(order));
  },

  /** Sets check boxes and swatches. */
  paint() {
    for (const row of this.rows) {
      row.querySelector(".choose").checked = this.chosen.has(row.dataset.run);
      const swatch = row.querySelector(".swatch");
      swatch.style.setProperty("--color", figures.color(Number(row.dataset.color)));
      swatch.classList.toggle("dashed", figures.dash(Number(row.dataset.color)) !== "solid");
    }
  },

  /** Loads the data of the chosen runs, each by a script, and shows those that have arrived. */
  load() {
    const missing = [...this.chosen].filter((name) => !(name in vortaroRuns));
    this.show();
    for (const name of missing) this.fetch(name);
  },

  fetch(name) {
    const row = this.rows.find((other) => other.dataset.run === name);
    const version = this.versions[name] ? `?${this.versions[name]}` : "";
    const script = vortaro.element("script", { src: `${row.dataset.source}${version}` });
    script.addEventListener("load", () => {
      script.remove();
      this.later ??= setTimeout(() => this.show(), SOON);
    });
    document.head.append(script);
  },

  show() {
    this.later = null;
    const rows = this.rows.filter((row) => this.chosen.has(row.dataset.run) && row.dataset.run in vortaroRuns);
    const runs = rows.map((row) => ({
      name: row.dataset.run, label: row.dataset.run, color: Number(row.dataset.color), data: vortaroRuns[row.dataset.run],
    }));
    this.curves.show(runs);
    document.querySelector("[data-count]").textContent = `${this.chosen.size} of ${this.rows.length} chosen`;
  },

  /** After the table was replaced: loads what has changed. */
  onRefresh() {
    this.versions = live.versions;
    this.paint();
    if (this.sort) this.sortBy(this.sort.column, this.sort.isDescending);
    this.show();
    for (const name of this.chosen) if (live.changed.includes(name)) this.fetch(name);
  },
};

if (runsPage.form) runsPage.open();
