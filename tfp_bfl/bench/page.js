"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const table = document.querySelector(".results");
  const form = document.querySelector("form");
  const [setting, method, score] = ["setting", "method", "score"].map((name) => form.elements[name]);
  const count = document.querySelector(".count");
  const body = table.tBodies[0];
  const rows = all("tr", body);

  // Filters: rows of the table, points of the figures and details of cells have the number of their cell.
  const filter = () => {
    const words = method.value.trim().toLowerCase();
    const shown = new Set();
    for (const row of rows) {
      const fits = (!setting.value || row.dataset.setting === setting.value) && row.dataset.method.includes(words);
      row.hidden = !fits;
      if (fits) shown.add(row.dataset.row);
    }
    for (const point of all(".point")) point.style.display = shown.has(point.dataset.row) ? "" : "none";
    for (const cell of all("main [id^=cell-]")) cell.parentElement.hidden = !shown.has(cell.id.slice(5));
    count.textContent = shown.size + " of " + rows.length + " rows";
  };

  // One score with its difference, or all scores without.
  const choose = () => {
    for (const cell of all("[data-score]", table)) {
      const isMean = cell.dataset.part === "mean";
      cell.hidden = score.value === "" ? !isMean : cell.dataset.score !== score.value;
    }
  };

  // A column is sorted by a click on its head; cells without a value are last in both directions.
  const sort = (head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const column = head.cellIndex;
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim().toLowerCase();
    const isNumeric = head.matches(".number");
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!isNumeric) return (down ? -1 : 1) * x.localeCompare(y);
      if (x === "" || y === "") return (x === "") - (y === "");
      return (down ? -1 : 1) * (Number(x) - Number(y));
    };
    body.append(...rows.sort(compare));
  };
  for (const head of all("thead th", table)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }

  // Details of a cell in a dialog: it takes the focus, Escape closes it, and the focus returns to its link.
  const dialog = document.querySelector("dialog");
  const content = dialog.querySelector("div");
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#cell-"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const cell = document.getElementById(link.getAttribute("href").slice(1)).cloneNode(true);
    cell.removeAttribute("id");
    content.replaceChildren(cell);
    hide();
    dialog.showModal();
    dialog.scrollTop = 0;
  });
  dialog.querySelector("button").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  // Labels of points, on hover and on focus.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const hide = () => { tip.hidden = true; };
  const show = (point) => {
    const figure = point.closest("figure");
    const box = point.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    tip.textContent = point.dataset.label;
    tip.hidden = false;
    figure.append(tip);
    const left = box.left - frame.left + box.width / 2 - tip.offsetWidth / 2;
    tip.style.left = Math.max(0, Math.min(left, frame.width - tip.offsetWidth)) + "px";
    tip.style.top = Math.max(0, box.top - frame.top - tip.offsetHeight - 6) + "px";
  };
  for (const point of all(".point")) {
    point.querySelector("title").remove(); // The browser's own label would cover this one.
    for (const name of ["pointerenter", "focus"]) point.addEventListener(name, () => show(point));
    for (const name of ["pointerleave", "blur"]) point.addEventListener(name, hide);
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  setting.addEventListener("change", filter);
  method.addEventListener("input", filter);
  score.addEventListener("change", choose);
  form.hidden = false;
  filter();
  choose();
})();
