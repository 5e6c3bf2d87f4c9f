// The page of an experiment: copied commands, the knobs of the template, the config as a tree.
"use strict";

{
  const entry = Object.values(vortaro.entries)[0];

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      } catch {
        getSelection().selectAllChildren(code); // without permission: the reader copies the selection
      }
    });
  }

  const others = document.getElementById("others");
  const fillOthers = () => {
    const box = others.querySelector(".filled");
    if (!others.open || box.childElementCount) return;
    const own = new Set(entry.own);
    const groups = new Map();
    for (const [knob, [value, owner]] of Object.entries(entry.knobs)) {
      if (own.has(knob)) continue;
      const [meaning, group] = vortaro.knobs[knob] ?? ["", "Model"];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push([knob, value, entry.meanings[knob] ?? meaning, owner]);
    }
    box.append(knobTable(groups));
  };
  const knobTable = (groups) => {
    const make = vortaro.element;
    const head = make("tr", {}, ...["Knob", "Value", "Meaning", "Set by"].map((label) => make("th", { scope: "col" }, label)));
    const row = ([knob, value, meaning, owner]) =>
      make("tr", {}, make("th", { scope: "row" }, make("code", {}, knob)), make("td", {}, make("code", {}, value)), make("td", {}, meaning), make("td", {}, owner));
    const title = (group) => make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: 4 }, group));
    const bodies = [...groups].map(([group, rows]) => make("tbody", {}, title(group), ...rows.map(row)));
    const table = make("table", { class: "knobs" }, make("thead", {}, head), ...bodies);
    return make("div", { class: "scroll", role: "group", tabindex: 0, "aria-label": "Other knobs" }, table);
  };
  others.addEventListener("toggle", fillOthers);
  fillOthers();

  const tree = {};
  for (const [path, value] of Object.entries(entry.config)) {
    let node = (tree[path.split(".")[0]] ??= { value: "", children: {} });
    for (const name of path.split(".").slice(1)) node = node.children[name] ??= { value: "", children: {} };
    node.value = value;
  }
  const root = document.getElementById("tree");
  const nodeAt = (path) => path.split(".").slice(1).reduce((node, name) => node.children[name], tree[path.split(".")[0]]);
  const fill = (details) => {
    const box = details.querySelector(".filled");
    if (!details.open || box.childElementCount) return;
    for (const [name, child] of Object.entries(nodeAt(details.dataset.path).children)) box.append(branch(`${details.dataset.path}.${name}`, name, child));
  };
  const branch = (path, name, node) => {
    const make = vortaro.element;
    const label = [make("code", {}, name), " ", make("span", {}, node.value)];
    if (!Object.keys(node.children).length) return make("div", { class: "leaf", "data-path": path }, ...label);
    return make("details", { "data-path": path }, make("summary", {}, ...label), make("div", { class: "filled" }));
  };
  root.addEventListener("toggle", (event) => fill(event.target), true);
  const openAll = (within) => {
    for (const details of within.querySelectorAll(":scope > details, :scope > .filled > details")) {
      details.open = true;
      fill(details);
      openAll(details);
    }
  };
  const closeAll = () => root.querySelectorAll("details").forEach((details) => (details.open = false));
  document.getElementById("expand").addEventListener("click", () => openAll(root));
  document.getElementById("collapse").addEventListener("click", closeAll);

  const filter = document.getElementById("config-filter");
  filter.addEventListener("input", () => {
    const query = filter.value.trim().toLowerCase();
    if (query) openAll(root);
    const found = Object.entries(entry.config).filter(([path, value]) => `${path} ${value}`.toLowerCase().includes(query)).map(([path]) => path);
    const shown = new Set(found.flatMap((path) => path.split(".").map((_, at, names) => names.slice(0, at + 1).join("."))));
    for (const node of root.querySelectorAll("[data-path]")) node.hidden = Boolean(query) && !shown.has(node.dataset.path);
    if (!query) closeAll();
  });

  new vortaro.MeshPicture(entry);
}
