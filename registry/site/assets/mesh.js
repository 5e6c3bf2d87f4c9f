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

/** The picture of one experiment, connected with the weight table: a weight and a device are chosen, or pointed at. */
vortaro.MeshPicture = class {
  constructor({ mesh, weights }) {
    this.mesh = mesh;
    this.weights = weights;
    this.axes = Object.keys(mesh);
    this.sizes = Object.values(mesh);
    this.count = this.sizes.reduce((product, size) => product * size, 1);
    this.picker = document.getElementById("weight");
    this.rows = [...document.querySelectorAll("#weight-table tbody tr")];
    const largest = weights.reduce((best, weight, number) => (weight.bytes > weights[best].bytes ? number : best), 0);
    this.chosen = { weight: largest, device: 0 };
    this.shown = { ...this.chosen };
    this.drawDevices();
    this.listen();
    this.paint();
  }

  get weight() {
    return this.weights[this.shown.weight];
  }

  /** Returns the coordinates of a device by axis. */
  device(number) {
    return Object.fromEntries(vortaro.grid.coordinates(number, this.sizes).map((at, axis) => [this.axes[axis], at]));
  }

  nameOf(number) {
    const named = Object.entries(this.device(number)).filter(([axis]) => this.mesh[axis] > 1);
    return named.length ? named.map(([axis, at]) => `${axis} ${at}`).join(", ") : "the only device";
  }

  /** Returns the beginning of a sentence about the device that is shown. */
  get subject() {
    return this.count > 1 ? `Device ${this.nameOf(this.shown.device)}` : "The device";
  }

  /** Returns the number of the slice of the weight that a device holds, row-major over its cuts. */
  sliceOf(number) {
    const parts = vortaro.mesh.parts(this.weight, this.mesh, this.device(number));
    const cut = parts.filter((_, dimension) => this.cuts[dimension].parts > 1);
    return cut.reduce((sum, part, at) => sum * this.cutSizes[at] + part, 0);
  }

  show(change, isChosen) {
    this.shown = { ...this.shown, ...change };
    if (isChosen) Object.assign(this.chosen, change);
    this.paint();
  }

  restore() {
    this.show({ ...this.chosen }, false);
  }

  listen() {
    this.picker.addEventListener("change", () => this.show({ weight: Number(this.picker.value) }, true));
    this.rows.forEach((row, number) => {
      row.addEventListener("mouseenter", () => this.show({ weight: number }, false));
      row.addEventListener("click", () => this.show({ weight: number }, true));
      row.querySelector("button").addEventListener("focus", () => this.show({ weight: number }, true));
    });
    document.querySelector("#weight-table tbody").addEventListener("mouseleave", () => this.restore());
    vortaro.onTheme(() => this.paint());
  }

  drawDevices() {
    const sizes = this.axes.map((axis) => `${axis} ${this.mesh[axis].toLocaleString("en")}`);
    const choose = (number, isChosen) => this.show({ device: number }, isChosen);
    const box = document.getElementById("devices");
    const name = (number) => this.nameOf(number);
    this.cells = vortaro.grid.draw(box, `Devices of the mesh, ${sizes.join(" by ")}`, this.sizes, name, choose, () => this.restore());
    document.getElementById("axes").textContent = sizes.join(" × ");
  }

  drawSlices() {
    const { weight, mesh } = this;
    this.drawn = this.shown.weight;
    this.cuts = vortaro.mesh.cuts(weight, mesh);
    this.cutSizes = this.cuts.map((cut) => cut.parts).filter((parts) => parts > 1);
    this.slices = this.cells.map((_, number) => this.sliceOf(number));
    const label = (number) => {
      const found = vortaro.grid.coordinates(number, this.cutSizes);
      return vortaro.mesh.text(weight, this.cuts.map((cut) => (cut.parts > 1 ? found.shift() : 0)), this.cuts);
    };
    const choose = (number, isChosen) => this.show({ device: this.slices.indexOf(number) }, isChosen);
    const box = document.getElementById("slices");
    this.options = vortaro.grid.draw(box, "Slices of the weight", this.cutSizes, label, choose, () => this.restore());
    const letters = vortaro.mesh.letters(weight);
    const dimensions = weight.shape.map((size, at) => {
      const { parts, axes } = this.cuts[at];
      return `${letters[at]} ${size.toLocaleString("en")}${parts > 1 ? ` in ${parts} by ${axes.join(" × ")}` : ""}`;
    });
    document.getElementById("dimensions").textContent = dimensions.join(" · ");
  }

  /** Draws what the device holds of every weight, the largest first. */
  drawHeld() {
    const at = this.device(this.shown.device);
    const most = Math.max(...this.weights.map((weight) => weight.bytes_per_device), 1);
    const sorted = this.weights.map((weight, number) => [weight, number]).sort((a, b) => b[0].bytes_per_device - a[0].bytes_per_device);
    const lines = sorted.map(([weight, number]) => {
      const parts = vortaro.mesh.parts(weight, this.mesh, at);
      return vortaro.element(
        "li",
        { class: number === this.shown.weight ? "current" : "" },
        vortaro.element("span", { class: "name" }, weight.path.replace("params/", "")),
        vortaro.element("span", { class: "bytes" }, vortaro.size(weight.bytes_per_device)),
        vortaro.element("span", { class: "range" }, vortaro.mesh.text(weight, parts, vortaro.mesh.cuts(weight, this.mesh))),
        vortaro.element("span", { class: "length", style: `width: ${(100 * weight.bytes_per_device) / most}%` }),
      );
    });
    document.getElementById("held").replaceChildren(vortaro.element("ul", {}, ...lines));
    const total = this.weights.reduce((sum, weight) => sum + weight.bytes_per_device, 0);
    document.getElementById("mesh-held").textContent = `${this.subject}: ${vortaro.size(total)}`;
  }

  drawSentence() {
    const { weight, shown } = this;
    const others = this.slices.filter((slice) => slice === this.slices[shown.device]).length - 1;
    const copies = others ? `, as ${others} other device${others > 1 ? "s do" : " does"}` : "";
    const range = vortaro.mesh.text(weight, vortaro.mesh.parts(weight, this.mesh, this.device(shown.device)), this.cuts);
    const held = vortaro.element("code", {}, `${weight.path.split("/").at(-1)}${range}`);
    const size = `, ${vortaro.size(weight.bytes_per_device)}${copies}.`;
    document.getElementById("held-slice").replaceChildren(`${this.subject} holds `, held, size);
  }

  paint() {
    const { shown } = this;
    if (this.drawn !== shown.weight) this.drawSlices();
    const slice = this.slices[shown.device];
    const colors = this.options.map((_, number) => vortaro.mesh.color(number, this.cutSizes));
    this.options.forEach((option, number) => option.style.setProperty("--cell", colors[number]));
    this.cells.forEach((option, number) => option.style.setProperty("--cell", colors[this.slices[number]]));
    vortaro.grid.mark(this.cells, shown.device, (number) => this.slices[number] === slice);
    vortaro.grid.mark(this.options, slice, () => false);
    this.picker.value = String(shown.weight);
    this.rows.forEach((row, number) => {
      row.classList.toggle("current", number === shown.weight);
      row.querySelector("button").setAttribute("aria-pressed", String(number === this.chosen.weight));
    });
    this.drawSentence();
    this.drawHeld();
  }
};
