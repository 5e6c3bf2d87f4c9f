// A grid of cells over some axes (of a mesh, or of the cuts of a weight): layout, and selection by mouse and keyboard.
"use strict";

vortaro.grid = {
  MOST_COLUMNS: 64,

  /**
   * Returns how to lay out cells over axes: `{columns, order}`; `order` has, for each position in reading order, the
   * row-major number of its cell over the axes as given. The longest axis runs along the columns, and wraps.
   */
  layout(sizes) {
    const cells = sizes.reduce((product, size) => product * size, 1);
    const long = sizes.reduce((best, size, axis) => (size > sizes[best] ? axis : best), 0);
    const length = sizes.length ? sizes[long] : 1;
    const others = cells / length;
    const columns = others === 1 && length > 16 ? 2 ** Math.ceil(Math.log2(length) / 2) : Math.min(length, vortaro.grid.MOST_COLUMNS);
    const inner = sizes.slice(long + 1).reduce((product, size) => product * size, 1);
    const order = [];
    for (let start = 0; start < length; start += columns) {
      for (let other = 0; other < others; other += 1) {
        for (let at = start; at < Math.min(start + columns, length); at += 1) {
          const before = Math.floor(other / inner);
          order.push((before * length + at) * inner + (other % inner));
        }
      }
    }
    return { columns, order };
  },

  /** Returns the coordinates of a row-major number over axes of these sizes. */
  coordinates(number, sizes) {
    const found = [];
    for (const size of [...sizes].reverse()) {
      found.unshift(number % size);
      number = Math.floor(number / size);
    }
    return found;
  },

  /**
   * Fills `box` with a list box of one option per cell, and calls `choose(number)` for the cell under the mouse, with
   * the focus, or clicked; `leave()` when the mouse leaves. Arrow keys move. Returns the options by number.
   */
  draw(box, label, sizes, name, choose, leave) {
    const { columns, order } = vortaro.grid.layout(sizes);
    const list = vortaro.element("div", { class: "grid", role: "listbox", tabindex: 0, "aria-label": label, style: `--columns: ${columns}; --rows: ${Math.ceil(order.length / columns)}` });
    const options = [];
    for (const number of order) {
      options[number] = vortaro.element("div", { role: "option", id: `${box.id}-${number}`, "aria-label": name(number), "aria-selected": "false", "data-number": number });
      list.append(options[number]);
    }
    const cell = (event) => event.target.closest("[data-number]");
    const numberOf = (option) => Number(option.dataset.number);
    list.addEventListener("mouseover", (event) => cell(event) && choose(numberOf(cell(event)), false));
    list.addEventListener("click", (event) => cell(event) && choose(numberOf(cell(event)), true));
    list.addEventListener("mouseleave", leave);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    list.addEventListener("keydown", (event) => {
      const selected = list.querySelector("[aria-selected=true]");
      const at = selected ? order.indexOf(numberOf(selected)) : 0;
      const to = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1 : at + (steps[event.key] ?? NaN);
      if (Number.isNaN(to)) return;
      event.preventDefault();
      if (order[to] !== undefined) choose(order[to], true);
    });
    box.replaceChildren(list);
    return options;
  },

  /** Marks one option as selected and others as related. */
  mark(options, selected, isRelated) {
    options.forEach((option, number) => {
      if ((option.getAttribute("aria-selected") === "true") !== (number === selected)) option.setAttribute("aria-selected", String(number === selected));
      option.classList.toggle("related", isRelated(number));
    });
    options[selected].parentElement.setAttribute("aria-activedescendant", options[selected].id);
  },
};
