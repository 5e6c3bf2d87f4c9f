// The page of one run: its curves, from data in the page or in a script beside it.
"use strict";

{
  const form = document.querySelector("form[data-curves]");
  if (form) {
    const curves = new Curves(form, false);
    const name = form.dataset.curves;
    const show = () => {
      const data = form.dataset.source ? vortaroRuns[name] : vortaro.data("curves");
      curves.show([{ name, label: name, color: 0, data }]);
    };
    const apply = () => hashParameters() && curves.restore(hashParameters());
    show();
    apply();
    curves.onState = () => {
      const parameters = new URLSearchParams();
      curves.store(parameters);
      setHash(parameters);
    };
    addEventListener("hashchange", apply);
    document.addEventListener("vortaro-refreshed", show);
  }
}
