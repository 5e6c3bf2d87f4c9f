// Pages of runs on a server: replaces what has changed while runs train. Pages opened from disk are not refreshed.
"use strict";

const live = {
  every: 5000, // milliseconds
  file: new URL("../runs/version.json", document.currentScript.src),
  versions: null, // of runs by name
  changed: [],
  isBusy: false, // one check at a time, and none while the page is loaded again

  async check() {
    if (document.hidden || live.isBusy) return;
    live.isBusy = true;
    if (!(await live.update())) live.isBusy = false;
  },

  /** Returns whether the page is being loaded again. */
  async update() {
    const found = await live.read(live.file, (response) => response.json());
    if (!found) return false;
    const changed = live.versions ? Object.keys(found).filter((name) => found[name] !== live.versions[name]) : [];
    const own = document.body.querySelector("form[data-source]")?.dataset.curves;
    const isOld = own ? changed.includes(own) : changed.length > 0;
    const text = isOld ? await live.read(location.href, (response) => response.text()) : "";
    if (text === null) return false; // the next check finds the same changes
    live.changed = changed;
    live.versions = found;
    return isOld && live.refresh(own, text);
  },

  /** Replaces what differs from `text`, the page on the server; returns whether it is being loaded again instead. */
  refresh(own, text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (live.parts(fresh) !== live.parts(document)) {
      location.reload(); // as after the first metrics
      return true;
    }
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (other && other.innerHTML !== part.innerHTML) part.replaceChildren(...document.importNode(other, true).childNodes);
    }
    const tell = () => document.dispatchEvent(new Event("vortaro-refreshed"));
    if (!own) {
      tell();
      return false;
    }
    const source = document.querySelector("form[data-source]").dataset.source;
    const script = vortaro.element("script", { src: `${source}?${live.versions[own]}` });
    script.addEventListener("load", tell);
    document.head.append(script);
    return false;
  },

  /** Returns the names of the figures and replaced parts of a page; a page with others is loaded as a new one. */
  parts(page) {
    const found = [...page.querySelectorAll("form[data-curves], figure[data-metric], [data-live]")];
    return found.map((part) => part.dataset.metric ?? part.dataset.live ?? "curves").sort().join();
  },

  async read(address, convert) {
    try {
      const response = await fetch(address, { cache: "no-store" });
      return response.ok ? await convert(response) : null;
    } catch {
      return null; // the server has stopped
    }
  },
};

if (location.protocol.startsWith("http")) {
  live.check();
  setInterval(live.check, live.every);
}
