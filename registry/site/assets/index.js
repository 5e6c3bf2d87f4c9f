// The index: search as you type, filters, sortable columns, the choice of two to compare. The address holds the state.
"use strict";

{
  const query = document.getElementById("query");
  const selects = [...document.querySelectorAll("select[data-filter]")];
  const body = document.querySelector("#experiments tbody");
  const headers = [...document.querySelectorAll("#experiments th button")];
  const elements = new Map([...body.rows].map((element) => [element.dataset.name, element]));
  const rows = vortaro.index.map((row, place) => ({
    ...row,
    place,
    element: elements.get(row.name),
    lowered: { name: row.name.toLowerCase(), text: `${row.text} ${row.error}`.toLowerCase(), knobs: row.knobs.map((knob) => knob.toLowerCase()) },
  }));
  const state = { sort: "", picked: [] };
  const SORTS = {
    name: (row) => row.lowered.name,
    parameters: (row) => row.parameters,
    devices: (row) => row.devices,
    mixer: (row) => row.mixer.join(", "),
    ffn: (row) => row.ffn.join(", "),
  };

  /** Returns how well a row matches all words, 0 for not at all, and the knobs that match. Values may lack quotes. */
  const match = (row, words) => {
    let score = 1;
    const knobs = new Set();
    for (const word of words) {
      const found = row.lowered.knobs.map((knob, at) => (knob.replaceAll("'", "").includes(word.replaceAll("'", "")) ? at : -1)).filter((at) => at >= 0);
      if (row.lowered.name.includes(word)) score += row.lowered.name.split(".").at(-1).startsWith(word) ? 8 : 4;
      else if (row.lowered.text.includes(word)) score += 2;
      else if (found.length) score += 1;
      else return { score: 0, knobs };
      if (!row.lowered.name.includes(word)) found.forEach((at) => knobs.add(row.knobs[at]));
    }
    return { score, knobs };
  };
  const isIn = (row, key, value) => {
    const held = { family: row.family, size: row.size, mixer: row.mixer, ffn: row.ffn, devices: row.device_range }[key];
    return Array.isArray(held) ? held.includes(value) : held === value;
  };
  const order = (a, b) => {
    if (!state.sort) return b.score - a.score || a.place - b.place;
    const of = SORTS[state.sort.replace("-", "")];
    const [first, second] = [of(a), of(b)];
    const missing = (first === null) - (second === null); // experiments without figures are last in both directions
    return missing || (state.sort.startsWith("-") ? -1 : 1) * (first < second ? -1 : first > second ? 1 : 0) || a.place - b.place;
  };

  const draw = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = [];
    for (const row of rows) {
      const { score, knobs } = match(row, words);
      row.score = score;
      const isShown = score > 0 && selects.every((select) => !select.value || isIn(row, select.dataset.filter, select.value));
      row.element.hidden = !isShown;
      row.element.querySelector(".hit").textContent = words.length ? [...knobs].slice(0, 4).join("  ") : "";
      if (isShown) shown.push(row);
    }
    body.append(...shown.sort(order).map((row) => row.element));
    const all = `${rows.length} experiment${rows.length === 1 ? "" : "s"}`;
    document.getElementById("count").textContent = shown.length === rows.length ? all : `${shown.length} of ${all}`;
    document.getElementById("nothing").hidden = shown.length > 0;
    for (const button of headers) {
      const isSorted = state.sort.replace("-", "") === button.dataset.sort;
      button.closest("th").setAttribute("aria-sort", isSorted ? (state.sort.startsWith("-") ? "descending" : "ascending") : "none");
    }
  };
  const remember = () => {
    const held = new URLSearchParams();
    if (query.value) held.set("q", query.value);
    for (const select of selects) if (select.value) held.set(select.dataset.filter, select.value);
    if (state.sort) held.set("sort", state.sort);
    history.replaceState(null, "", `#${held}`);
  };
  const update = () => {
    draw();
    remember();
  };
  const restore = () => {
    const held = new URLSearchParams(location.hash.slice(1));
    query.value = held.get("q") ?? "";
    for (const select of selects) {
      const value = held.get(select.dataset.filter) ?? "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    const sort = held.get("sort") ?? "";
    state.sort = sort.replace("-", "") in SORTS ? sort : "";
    draw();
  };

  query.addEventListener("input", update);
  query.form.addEventListener("submit", (event) => event.preventDefault());
  selects.forEach((select) => select.addEventListener("change", update));
  document.getElementById("clear").addEventListener("click", () => {
    query.value = "";
    selects.forEach((select) => (select.value = ""));
    state.sort = "";
    update();
  });
  for (const button of headers) {
    const [first, second] = ["parameters", "devices"].includes(button.dataset.sort) ? ["-", ""] : ["", "-"];
    button.addEventListener("click", () => {
      const name = button.dataset.sort;
      state.sort = state.sort === first + name ? second + name : state.sort === second + name ? "" : first + name;
      update();
    });
  }
  addEventListener("hashchange", restore);

  const links = () => [...body.querySelectorAll("tr:not([hidden]) a")];
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input[type=search], select, textarea");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      query.focus();
      query.select();
    } else if (event.key === "Escape" && event.target === query) {
      query.value = "";
      update();
    } else if (event.key === "Enter" && event.target === query) {
      links()[0]?.click();
    } else if (["ArrowDown", "ArrowUp"].includes(event.key) && (event.target === query || event.target.closest("#experiments a"))) {
      event.preventDefault();
      const shown = links();
      const to = (event.target === query ? -1 : shown.indexOf(event.target)) + (event.key === "ArrowDown" ? 1 : -1);
      (to < 0 ? query : shown[Math.min(to, shown.length - 1)])?.focus();
    }
  });

  body.addEventListener("change", (event) => {
    const name = event.target.closest("tr").dataset.name;
    state.picked = event.target.checked ? [...state.picked, name].slice(-2) : state.picked.filter((each) => each !== name);
    for (const [each, element] of elements) {
      const box = element.querySelector("input");
      if (box) box.checked = state.picked.includes(each);
    }
    const note = document.getElementById("comparison");
    const [a, b] = state.picked;
    const address = `compare.html#${new URLSearchParams({ a: a ?? "", b: b ?? "" })}`;
    note.replaceChildren(b ? vortaro.element("a", { href: address }, `Compare ${a} and ${b}`) : a ? `Select another to compare with ${a}.` : "Select two to compare them.");
  });

  restore();
}
