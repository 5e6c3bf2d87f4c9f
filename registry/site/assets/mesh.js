// The picture of an experiment's weights over its mesh: which device holds which slice, and the bytes of a device.
"use strict";

vortaro.mesh = {
  /** Returns, for each dimension of a weight, the mesh axes that cut it and the number of parts. */
  cuts(weight, mesh) {
    return weight.cut.map((axes) => ({ axes, parts: axes.reduce((product, axis) => product * mesh[axis], 1) }));
  },

  /** Returns the number of the part that a device (coordinates by axis name) holds, for each dimension. */
  parts(weight, mesh, device) {
    return weight.cut.map((axes) => axes.reduce((part, axis) => part * mesh[axis] + device[axis], 0));
  },

  /** Returns a slice as text: [:, 0:128, 2:4]. */
  text(weight, parts, cuts) {
    const ranges = weight.shape.map((size, dimension) => {
      if (cuts[dimension].parts === 1) return ":";
      const length = size / cuts[dimension].parts;
      return `${parts[dimension] * length}:${(parts[dimension] + 1) * length}`;
    });
    return `[${ranges.join(", ")}]`;
  },

  /** Returns the letters of a weight's dimensions, as in query_mnd; "layers" for a dimension that they lack. */
  letters(weight) {
    const letters = [...weight.path.split("_").at(-1)];
    const lacking = weight.shape.length - letters.length;
    return lacking >= 0 ? [...Array(lacking).fill("layers"), ...letters] : weight.shape.map((_, number) => `dimension ${number}`);
  },

  /** Returns the color of a slice: its hue by number along the longest cut, its lightness along the others. */
  color(number, sizes) {
    const count = sizes.reduce((product, size) => product * size, 1);
    const [light, chroma] = vortaro.isDark() ? [0.56, 0.11] : [0.74, 0.105];
    if (count === 1) return `oklch(${light} ${chroma} 258)`;
    const at = vortaro.grid.coordinates(number, sizes);
    const long = sizes.reduce((best, size, axis) => (size > sizes[best] ? axis : best), 0);
    const rest = sizes.filter((_, axis) => axis !== long);
    const other = at.filter((_, axis) => axis !== long).reduce((sum, each, axis) => sum * rest[axis] + each, 0);
    const others = count / sizes[long];
    const shade = others > 1 ? (other / (others - 1) - 0.5) * 0.2 : 0;
    return `oklch(${light + shade} ${chroma} ${258 + (290 * at[long]) / sizes[long]})`;
  },
};

/** Draws the picture of one experiment and connects it with the weight table. */
vortaro.drawMesh = (entry) => {
  const { mesh, weights } = entry;
  const axes = Object.keys(mesh);
  const sizes = Object.values(mesh);
  const count = sizes.reduce((product, size) => product * size, 1);
  const picker = document.getElementById("weight");
  const rows = [...document.querySelectorAll("#weight-table tbody tr")];
  const largest = weights.reduce((best, weight, number) => (weight.bytes > weights[best].bytes ? number : best), 0);
  const chosen = { weight: largest, device: 0 };
  let shown = { ...chosen };
  let slices = { options: [], sizes: [], cuts: [], weight: -1 };

  const device = (number) => Object.fromEntries(vortaro.grid.coordinates(number, sizes).map((at, axis) => [axes[axis], at]));
  const nameOf = (number) => {
    const named = Object.entries(device(number)).filter(([axis]) => mesh[axis] > 1);
    return named.length ? named.map(([axis, at]) => `${axis} ${at}`).join(", ") : "the only device";
  };
  const sliceOf = (number) => {
    const parts = vortaro.mesh.parts(weights[shown.weight], mesh, device(number));
    return parts.filter((_, dimension) => slices.cuts[dimension].parts > 1).reduce((sum, part, at) => sum * slices.sizes[at] + part, 0);
  };
  const show = (change, isChosen) => {
    shown = { ...shown, ...change };
    if (isChosen) Object.assign(chosen, change);
    paint();
  };
  const restore = () => show({ ...chosen }, false);

  const drawSlices = () => {
    const weight = weights[shown.weight];
    const cuts = vortaro.mesh.cuts(weight, mesh);
    const cutSizes = cuts.map((cut) => cut.parts).filter((parts) => parts > 1);
    slices = { ...slices, cuts, sizes: cutSizes, weight: shown.weight };
    const partsOf = (number) => {
      const found = vortaro.grid.coordinates(number, cutSizes);
      return cuts.map((cut) => (cut.parts > 1 ? found.shift() : 0));
    };
    const label = (number) => vortaro.mesh.text(weight, partsOf(number), cuts);
    const firstHolder = (number) => Array.from({ length: count }, (_, at) => at).find((at) => sliceOf(at) === number);
    const choose = (number, isChosen) => show({ device: firstHolder(number) }, isChosen);
    slices.options = vortaro.grid.draw(document.getElementById("slices"), "Slices of the weight", cutSizes, label, choose, restore);
    const letters = vortaro.mesh.letters(weight);
    const dimensions = weight.shape.map((size, at) => `${letters[at]} ${size.toLocaleString("en")}${cuts[at].parts > 1 ? ` in ${cuts[at].parts} by ${cuts[at].axes.join(" × ")}` : ""}`);
    document.getElementById("dimensions").textContent = dimensions.join(" · ");
    slices.byDevice = Array.from({ length: count }, (_, number) => sliceOf(number));
  };

  const drawHeld = () => {
    const at = device(shown.device);
    const most = Math.max(...weights.map((weight) => weight.bytes_per_device), 1);
    const sorted = weights.map((weight, number) => [weight, number]).sort((a, b) => b[0].bytes_per_device - a[0].bytes_per_device);
    const lines = sorted.map(([weight, number]) => {
      const text = vortaro.mesh.text(weight, vortaro.mesh.parts(weight, mesh, at), vortaro.mesh.cuts(weight, mesh));
      return vortaro.element(
        "li",
        { class: number === shown.weight ? "current" : "" },
        vortaro.element("span", { class: "name" }, weight.path.replace("params/", "")),
        vortaro.element("span", { class: "bytes" }, vortaro.size(weight.bytes_per_device)),
        vortaro.element("span", { class: "range" }, text),
        vortaro.element("span", { class: "length", style: `width: ${(100 * weight.bytes_per_device) / most}%` }),
      );
    });
    document.getElementById("held").replaceChildren(vortaro.element("ul", {}, ...lines));
    const total = weights.reduce((sum, weight) => sum + weight.bytes_per_device, 0);
    document.getElementById("mesh-held").textContent = `${count > 1 ? `Device ${nameOf(shown.device)}` : "The device"}: ${vortaro.size(total)}`;
  };

  const paint = () => {
    const weight = weights[shown.weight];
    if (slices.weight !== shown.weight) drawSlices();
    const slice = slices.byDevice[shown.device];
    const colors = slices.options.map((_, number) => vortaro.mesh.color(number, slices.sizes));
    slices.options.forEach((option, number) => option.style.setProperty("--cell", colors[number]));
    cells.forEach((option, number) => option.style.setProperty("--cell", colors[slices.byDevice[number]]));
    vortaro.grid.mark(cells, shown.device, (number) => slices.byDevice[number] === slice);
    vortaro.grid.mark(slices.options, slice, () => false);
    const holders = slices.byDevice.filter((each) => each === slice).length;
    const copies = holders > 1 ? `, as ${holders - 1} other device${holders > 2 ? "s do" : " does"}` : "";
    const range = vortaro.mesh.text(weight, vortaro.mesh.parts(weight, mesh, device(shown.device)), slices.cuts);
    const name = weight.path.split("/").at(-1);
    document.getElementById("held-slice").replaceChildren(
      `${count > 1 ? `Device ${nameOf(shown.device)}` : "The device"} holds `,
      vortaro.element("code", {}, `${name}${range}`),
      `, ${vortaro.size(weight.bytes_per_device)}${copies}.`,
    );
    picker.value = String(shown.weight);
    rows.forEach((row, number) => {
      row.classList.toggle("current", number === shown.weight);
      row.querySelector("button").setAttribute("aria-pressed", String(number === chosen.weight));
    });
    drawHeld();
  };

  const cells = vortaro.grid.draw(document.getElementById("devices"), `Devices of the mesh ${axes.map((axis) => `${axis}=${mesh[axis]}`).join(" ")}`, sizes, nameOf, (number, isChosen) => show({ device: number }, isChosen), restore);
  document.getElementById("axes").textContent = axes.map((axis) => `${axis} ${mesh[axis].toLocaleString("en")}`).join(" × ");
  picker.addEventListener("change", () => show({ weight: Number(picker.value) }, true));
  rows.forEach((row, number) => {
    row.addEventListener("mouseenter", () => show({ weight: number }, false));
    row.addEventListener("click", () => show({ weight: number }, true));
    row.querySelector("button").addEventListener("focus", () => show({ weight: number }, true));
  });
  document.querySelector("#weight-table tbody").addEventListener("mouseleave", restore);
  vortaro.onTheme(paint);
  paint();
};
