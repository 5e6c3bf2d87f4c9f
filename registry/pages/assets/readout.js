// The readout of a figure: all values at one x, in a box near the pointer, with a line in all figures of the page.
"use strict";

const readout = {
  box: null,
  most: 24, // rows; of more lines, those that are nearest to the pointer

  /** The lines of a plot that have values to read. */
  lines(plot) {
    return (plot.data ?? []).filter((trace) => trace.type === "scatter" && trace.hoverinfo !== "skip");
  },

  onPointer(plot, event) {
    if (!plot.data || !readout.lines(plot).length) return;
    const bounds = plot.getBoundingClientRect();
    const { xaxis, yaxis } = plot._fullLayout;
    const [left, top] = [event.clientX - bounds.left - xaxis._offset, event.clientY - bounds.top - yaxis._offset];
    if (left < -4 || left > xaxis._length + 4 || event.buttons === 1 && event.pointerType === "mouse") return readout.hide();
    readout.show(plot, readout.nearest(plot, xaxis, left), { top, event });
  },

  /** Returns the x of the point of any line that is nearest to a pixel. */
  nearest(plot, axis, pixel) {
    let [best, least] = [null, Infinity];
    for (const trace of readout.lines(plot)) {
      for (const x of trace.x) {
        const distance = x === null ? Infinity : Math.abs(axis.d2p(x) - pixel);
        if (distance < least) [best, least] = [x, distance];
      }
    }
    return best;
  },

  /** Returns the value of a line at x: that of its nearest point, null before its start and after its end. */
  value(trace, at) {
    const known = trace.x.map((x, index) => index).filter((index) => trace.x[index] !== null && trace.y[index] !== null);
    if (!known.length) return null;
    const [first, last] = [trace.x[known[0]], trace.x[known.at(-1)]];
    const space = (last - first) / Math.max(known.length - 1, 1) / 2 || Math.abs(first) * 1e-6;
    if (at < first - space || at > last + space) return null;
    return trace.y[known.reduce((a, b) => (Math.abs(trace.x[b] - at) < Math.abs(trace.x[a] - at) ? b : a))];
  },

  /** Shows the values at x, the highest first; returns them as a sentence. */
  show(plot, at, { top = null, event = null } = {}) {
    if (at === null) return readout.hide();
    const { xaxis, yaxis } = plot._fullLayout;
    let rows = readout.lines(plot).map((trace) => ({ trace, value: readout.value(trace, at) })).filter((row) => row.value !== null);
    const distance = (row) => (top === null ? 0 : Math.abs(yaxis.d2p(row.value) - top));
    rows = rows.sort((a, b) => distance(a) - distance(b)).slice(0, readout.most);
    const near = top === null ? null : rows[0];
    rows.sort((a, b) => b.value - a.value);
    const title = xaxis.title.text ? `${xaxis.title.text} ${figures.number(at)}` : figures.number(at);
    readout.fill(title, rows, near);
    for (const other of figures.drawn.keys()) readout.mark(other, at, other === plot ? rows : []);
    const bounds = plot.getBoundingClientRect();
    readout.move(event?.clientX ?? bounds.left + xaxis._offset + xaxis.d2p(at), event?.clientY ?? bounds.top + yaxis._offset);
    return `${title}: ${rows.map((row) => `${row.trace.meta} ${figures.number(row.value)}`).join(", ")}`;
  },

  fill(title, rows, near) {
    readout.box ??= document.body.appendChild(vortaro.element("div", { class: "readout", "aria-hidden": "true" }));
    const made = rows.map((row) => {
      const swatch = vortaro.element("span", { class: row.trace.line.dash === "solid" ? "swatch" : "swatch dashed" });
      swatch.style.setProperty("--color", row.trace.line.color);
      const value = vortaro.element("b", {}, figures.value(row.value));
      return vortaro.element("div", { class: row === near ? "near" : null }, swatch, vortaro.element("span", {}, row.trace.meta), value);
    });
    readout.box.replaceChildren(vortaro.element("p", {}, title), ...made);
    readout.box.hidden = false;
  },

  /** Places the box to the right of a point of the window, or to its left where it would not fit. */
  move(x, y) {
    const { offsetWidth: width, offsetHeight: height } = readout.box;
    const left = x + 18 + width < innerWidth ? x + 18 : x - 18 - width;
    readout.box.style.left = `${Math.max(4, left)}px`;
    readout.box.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`;
  },

  /** Draws the line at x into a plot over the same axis, and a dot on each of its rows. */
  mark(plot, at, rows) {
    const layout = plot.data && plot.offsetParent && plot._fullLayout;
    if (!layout?.xaxis) return;
    const { xaxis, yaxis } = layout;
    let marks = plot.querySelector(".marks");
    if (!marks) marks = plot.appendChild(vortaro.element("div", { class: "marks" }));
    const left = xaxis.d2p(at);
    if (plot.dataset.chart && !rows.length || !(left >= 0 && left <= xaxis._length)) return marks.replaceChildren();
    const line = vortaro.element("i");
    Object.assign(line.style, { left: `${xaxis._offset + left}px`, top: `${yaxis._offset}px`, height: `${yaxis._length}px` });
    const dots = rows.map((row) => {
      const dot = vortaro.element("span");
      const top = yaxis._offset + yaxis.d2p(row.value);
      Object.assign(dot.style, { left: `${xaxis._offset + left}px`, top: `${top}px`, background: row.trace.line.color });
      return dot;
    });
    marks.replaceChildren(line, ...dots);
  },

  hide() {
    if (readout.box) readout.box.hidden = true;
    for (const marks of document.querySelectorAll(".plot .marks")) marks.replaceChildren();
    return "";
  },
};

addEventListener("pointerdown", (event) => event.target.closest?.(".plot") || readout.hide());
addEventListener("scroll", () => readout.hide(), { passive: true });
