"use strict";
(() => {
  const PAGE = 50;
  const collator = new Intl.Collator("en", { numeric: true });

  /* Order of two keys; a missing one (null) comes last whichever way the column is sorted. */
  function order(a, b, direction) {
    if (a === null || b === null) return (a === null) - (b === null);
    const difference = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
    return direction * difference;
  }

  /* Decimals with a true minus sign; what rounds to zero has none. */
  function decimal(value, digits) {
    return value.toFixed(digits).replace(/^-(?=0\.0+$)/, "").replace("-", "−");
  }

  /* Let the headers of a table sort it: `sort(column, direction)` is called with 1 (ascending) or -1. */
  function sortable(table, sort) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      header.firstElementChild.addEventListener("click", () => {
        const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        headers.forEach((other) => other.setAttribute("aria-sort", "none"));
        header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
        sort(column, direction);
      });
    });
  }

  function keyOf(cell) {
    const key = cell.dataset.key;
    if (key === "") return null;
    return Number.isNaN(Number(key)) ? key : Number(key);
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    sortable(table, (column, direction) => {
      const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
      rows.sort((a, b) => order(a[0], b[0], direction));
      body.append(...rows.map(([, row]) => row));
    });
  });

  /* The table of heads is drawn a page at a time, so that thousands of rows stay quick. */
  function headTable(root) {
    const { checkpoints, columns, errors } = JSON.parse(document.getElementById("heads-data").textContent);
    const table = root.querySelector("table");
    const { missing, digits } = table.dataset;
    const headers = [...table.tHead.rows[0].cells];
    const names = headers.map((header) => header.dataset.column);
    const numeric = new Set(names.filter((_, index) => headers[index].classList.contains("number")));
    const controls = root.querySelector("form").elements;
    const status = root.querySelector("[role=status]");
    const [previous, next] = root.querySelectorAll(".pager button");
    let rows = columns.checkpoint.map((_, row) => row);
    let shown = rows;
    let page = 0;

    /* Every word must fit: L12, H3 and L12H3 name layer and head exactly, other words the start of a text of the row. */
    function matcher(text) {
      const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
        const exact = /^(?:l(\d+))?(?:h(\d+))?$/.exec(word);
        if (exact) {
          const [, layer, head] = exact;
          return (row) => (layer === undefined || columns.layer[row] === Number(layer)) && (head === undefined || columns.head[row] === Number(head));
        }
        const texts = [columns.layer_type, columns.category, columns.sign];
        return (row) => texts.some((column) => column[row] !== null && column[row].toLowerCase().startsWith(word));
      });
      return (row) => tests.every((test) => test(row));
    }

    function filter() {
      const at = controls.checkpoint.value;
      const matches = matcher(controls.filter.value);
      shown = rows.filter((row) => (at === "" || columns.checkpoint[row] === Number(at)) && matches(row));
      page = 0;
      draw();
    }

    function cell(row, name) {
      const element = document.createElement("td");
      const value = columns[name][row];
      if (numeric.has(name)) element.className = "number";
      if (value === null) element.textContent = missing;
      else if (name === "checkpoint") element.textContent = checkpoints[value];
      else if (Number.isInteger(value) && !(name in errors)) element.textContent = value;
      else if (typeof value === "number") element.textContent = decimal(value, digits);
      else element.textContent = value;
      const error = name in errors ? errors[name][row] : null;
      if (error !== null && value !== null) {
        const note = document.createElement("small");
        note.textContent = `± ${error.toFixed(digits)}`;
        element.append(note);
      }
      return element;
    }

    function draw() {
      const start = page * PAGE;
      const visible = shown.slice(start, start + PAGE);
      table.tBodies[0].replaceChildren(...visible.map((row) => {
        const line = document.createElement("tr");
        line.append(...names.map((name) => cell(row, name)));
        return line;
      }));
      const count = (number) => number.toLocaleString("en");
      status.textContent = shown.length
        ? `${count(start + 1)} to ${count(start + visible.length)} of ${count(shown.length)} rows`
        : "No head fits the filter.";
      previous.disabled = page === 0;
      next.disabled = start + PAGE >= shown.length;
    }

    function turn(step) {
      page += step;
      draw();
      table.parentElement.scrollTop = 0;
    }

    sortable(table, (column, direction) => {
      const keys = columns[names[column]];
      rows = [...rows].sort((a, b) => order(keys[a], keys[b], direction));
      filter();
    });
    controls.checkpoint.addEventListener("change", filter);
    controls.filter.addEventListener("input", filter);
    root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    previous.addEventListener("click", () => turn(-1));
    next.addEventListener("click", () => turn(1));
    filter();
  }

  headTable(document.getElementById("heads"));

  /* The details of a caption are open, except on a phone until they are asked for, and always on paper. */
  const details = document.querySelectorAll("details.more");
  const unfold = (open) => details.forEach((detail) => { detail.open = open; });
  if (window.matchMedia("(max-width: 40rem)").matches) unfold(false);
  window.addEventListener("beforeprint", () => unfold(true));

  /* A picture in full size, over the page; Escape or a click closes it. */
  document.querySelectorAll("button.enlarge").forEach((button) => {
    button.addEventListener("click", () => {
      const dialog = document.createElement("dialog");
      const picture = button.firstElementChild.cloneNode();
      dialog.append(picture);
      dialog.tabIndex = -1;
      dialog.addEventListener("click", () => dialog.close());
      dialog.addEventListener("close", () => dialog.remove());
      document.body.append(dialog);
      dialog.showModal();
    });
  });
})();
