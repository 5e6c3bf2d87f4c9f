// The comparison of any two experiments. The address names them: compare.html#a=NAME&b=NAME.
"use strict";

{
  const make = vortaro.element;
  const selects = { a: document.getElementById("a"), b: document.getElementById("b") };
  const all = document.getElementById("all");
  const result = document.getElementById("result");
  const message = document.getElementById("message");
  const names = new Set(vortaro.index.filter((row) => !row.error).map((row) => row.name));
  const loading = new Map();
  vortaro.entries ??= {};

  /** Returns the data of an experiment, whose script is loaded once. */
  const load = (name) => {
    if (!loading.has(name)) {
      const script = make("script", { src: `data/${encodeURIComponent(name)}.js` });
      const loaded = new Promise((resolve, reject) => {
        script.addEventListener("load", () => resolve(vortaro.entries[name]));
        script.addEventListener("error", () => reject(new Error(`The data of ${name} cannot be read. Write the site again.`)));
      });
      document.head.append(script);
      loading.set(name, loaded);
    }
    return loading.get(name);
  };

  const table = (label, columns, numbers, rows) => {
    const kind = (at) => ({ class: numbers.includes(columns[at]) ? "n" : columns[at] === "Set by" ? "owner" : null });
    const head = make("tr", {}, ...columns.map((column, at) => make("th", { scope: "col", ...kind(at) }, column)));
    const body = rows.map(({ cells, isEqual }) => make("tr", { class: isEqual ? "equal" : "" }, ...cells.map((cell, at) => (at ? make("td", kind(at), ...[cell].flat()) : make("th", { scope: "row" }, label === "Totals" ? cell : make("code", {}, cell))))));
    return make("div", { class: "scroll", role: "group", tabindex: 0, "aria-label": label }, make("table", { class: "compared" }, make("thead", {}, head), make("tbody", {}, ...body)));
  };
  const code = (text) => (text === undefined ? make("span", { class: "absent" }, "absent") : make("code", {}, text));
  const section = (title, columns, numbers, rows) => {
    const differing = rows.filter((row) => !row.isEqual).length;
    const shown = all.checked ? rows : rows.filter((row) => !row.isEqual);
    const note = differing ? `${differing} of ${rows.length} differ` : `all ${rows.length} are equal`;
    return [make("h2", {}, title, " ", make("small", {}, note)), ...(shown.length ? [table(title, columns, numbers, shown)] : [])];
  };
  const keys = (a, b) => [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const exact = (a, b, show) => (a !== b && show(a) === show(b) ? [a, b].map((number) => number.toLocaleString("en")) : [show(a), show(b)]);

  const totals = (a, b) => {
    const labels = {
      parameters: "parameters",
      bytes: "bytes of weights",
      bytes_per_device: "weights per device",
      gradient_bytes_per_device: "gradients per device",
      optimizer_bytes_per_device: "optimizer per device",
    };
    const meshes = [a, b].map((entry) => Object.entries(entry.mesh).map(([axis, size]) => `${axis}=${size}`).join(" "));
    const rows = Object.entries(labels).map(([key, label]) => {
      const [left, right] = [a.totals[key] ?? 0, b.totals[key] ?? 0];
      const ratio = left ? `${Number((right / left).toPrecision(3))}×` : "-";
      return { cells: [label, ...exact(left, right, key === "parameters" ? vortaro.amount : vortaro.size), ratio], isEqual: left === right };
    });
    return [...rows, { cells: ["mesh", ...meshes, ""], isEqual: meshes[0] === meshes[1] }];
  };
  const knobs = (a, b) =>
    keys(a.knobs, b.knobs).map((knob) => {
      const [left, right] = [a.knobs[knob], b.knobs[knob]];
      const owners = [...new Set([left?.[1], right?.[1]].filter(Boolean))].join(" → ");
      const meaning = a.meanings[knob] ?? b.meanings[knob] ?? vortaro.knobs[knob]?.[0] ?? "";
      return { cells: [knob, code(left?.[0]), code(right?.[0]), meaning, owners], isEqual: left?.[0] === right?.[0] };
    });
  const config = (a, b) => keys(a.config, b.config).map((path) => ({ cells: [path, code(a.config[path]), code(b.config[path])], isEqual: a.config[path] === b.config[path] }));
  const weights = (a, b) => {
    const [left, right] = [a, b].map((entry) => Object.fromEntries(entry.weights.map((weight) => [weight.path, weight])));
    return keys(left, right).map((path) => {
      const [x, y] = [left[path], right[path]];
      const show = (weight) => (weight ? [make("code", {}, `${weight.shape.join("×")} ${weight.dtype}`), make("br"), make("code", {}, weight.spec)] : code(undefined));
      const bytes = (weight) => (weight ? vortaro.size(weight.bytes_per_device) : "");
      const isEqual = Boolean(x && y) && ["shape", "dtype", "spec", "bytes_per_device"].every((key) => String(x[key]) === String(y[key]));
      return { cells: [path.replace("params/", ""), show(x), show(y), bytes(x), bytes(y)], isEqual };
    });
  };

  const draw = async () => {
    const [a, b] = [selects.a.value, selects.b.value];
    document.title = a && b ? `${a} and ${b} · Compare` : "Compare · Experiments";
    if (!a || !b) {
      result.replaceChildren();
      message.textContent = "Choose two experiments.";
      return;
    }
    try {
      const [left, right] = await Promise.all([load(a), load(b)]);
      if (selects.a.value !== a || selects.b.value !== b) return; // another choice was made meanwhile
      const parts = [
        ["Totals", ["Total", "a", "b", "b / a"], ["a", "b", "b / a"], totals(left, right)],
        ["Knobs", ["Knob", "a", "b", "Meaning", "Set by"], [], knobs(left, right)],
        ["Config", ["Path", "a", "b"], [], config(left, right)],
        ["Weights", ["Weight", "a", "b", "Per device, a", "Per device, b"], ["Per device, a", "Per device, b"], weights(left, right)],
      ];
      result.replaceChildren(...parts.flatMap((part) => section(...part)));
      const link = (side) => [`${side}: `, make("a", { href: `experiments/${encodeURIComponent(selects[side].value)}.html` }, selects[side].value)];
      message.replaceChildren(...link("a"), "  ", ...link("b"));
    } catch (error) {
      result.replaceChildren();
      message.textContent = error.message;
    }
  };
  const change = () => {
    const held = new URLSearchParams({ a: selects.a.value, b: selects.b.value });
    history.replaceState(null, "", `#${held}`);
    draw();
  };
  const restore = () => {
    const held = new URLSearchParams(location.hash.slice(1));
    for (const [side, select] of Object.entries(selects)) select.value = names.has(held.get(side)) ? held.get(side) : "";
    draw();
  };
  selects.a.form.addEventListener("submit", (event) => event.preventDefault());
  Object.values(selects).forEach((select) => select.addEventListener("change", change));
  all.addEventListener("change", draw);
  document.getElementById("swap").addEventListener("click", () => {
    [selects.a.value, selects.b.value] = [selects.b.value, selects.a.value];
    change();
  });
  addEventListener("hashchange", restore);
  restore();
}
