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

  const BOX = { width: 340, height: 210, left: 46, right: 8, top: 8, bottom: 30 };

  function shape(name, attributes, text) {
    const element = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    if (text !== undefined) element.textContent = text;
    return element;
  }

  /* A number for people: three digits, and none that says nothing. */
  function short(value) {
    const size = Math.abs(value);
    if (size < 1e-6) return "0";
    if (size < 0.001) return value.toExponential(1).replaceAll("-", "−");
    return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 4 }).replace("-", "−");
  }

  /* A chart of `series` ({label, kind, points: [[x, y, error]]}); x is drawn as log(x + shift). */
  function chart(title, xLabel, shift, series) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    const points = series.flatMap((one) => one.points);
    if (!points.length) return figure;
    const place = (x) => Math.log(x + shift);
    const low = Math.min(...points.map(([x]) => place(x))), high = Math.max(...points.map(([x]) => place(x)));
    const bottom = Math.min(...points.map(([, y, e]) => y - (e ?? 0))), top = Math.max(...points.map(([, y, e]) => y + (e ?? 0)));
    const X = (x) => BOX.left + ((place(x) - low) / (high - low || 1)) * (BOX.width - BOX.left - BOX.right);
    const Y = (y) => BOX.height - BOX.bottom - ((y - bottom) / (top - bottom || 1)) * (BOX.height - BOX.top - BOX.bottom);
    const svg = shape("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": title });
    [bottom, (bottom + top) / 2, top].forEach((value) => {
      svg.append(shape("line", { class: "rule", x1: BOX.left, x2: BOX.width - BOX.right, y1: Y(value), y2: Y(value) }));
      svg.append(shape("text", { x: BOX.left - 4, y: Y(value) + 3, "text-anchor": "end" }, short(value)));
    });
    const xs = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
    [0, 1, 2, 3].map((part) => low + (part / 3) * (high - low)).forEach((at, part) => {
      const near = xs.reduce((best, x) => (Math.abs(place(x) - at) < Math.abs(place(best) - at) ? x : best), xs[0]);
      const anchor = ["start", "middle", "middle", "end"][part];
      svg.append(shape("text", { x: X(near), y: BOX.height - BOX.bottom + 13, "text-anchor": anchor }, short(near)));
    });
    svg.append(shape("text", { x: (BOX.left + BOX.width) / 2, y: BOX.height - 3, "text-anchor": "middle" }, xLabel));
    series.forEach(({ kind, points: own }) => {
      if (kind.includes("dots")) {
        own.forEach(([x, y, e]) => {
          if (e) svg.append(shape("line", { class: kind, x1: X(x), x2: X(x), y1: Y(y - e), y2: Y(y + e) }));
          svg.append(shape("circle", { class: kind, cx: X(x), cy: Y(y), r: 2.2 }));
        });
      } else {
        svg.append(shape("polyline", { class: kind, points: own.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" ") }));
      }
    });
    const caption = document.createElement("figcaption");
    caption.append(title, ": ");
    series.forEach(({ label, kind }, number) => {
      const name = document.createElement("span");
      name.className = kind;
      name.textContent = label;
      caption.append(number ? ", " : "", name);
    });
    figure.append(svg, caption);
    return figure;
  }

  /* One head: its curves and all its numbers. */
  function oneHead(root) {
    const data = JSON.parse(document.getElementById("head-data").textContent);
    const form = root.querySelector("form"), { layer, head } = form.elements;
    const body = root.querySelector("tbody"), charts = root.querySelector(".charts");
    const option = (value) => new Option(value, value);
    layer.append(...[...new Set(data.heads.map(([number]) => number))].map(option));

    /* Points of a curve: x is the first list, y the list `column`, with errors from another; missing ones are left out. */
    function curve(table, label, kind, column, error) {
      const lists = data.curves[table]?.[`${layer.value} ${head.value}`];
      if (!lists || !lists[column]) return [];
      const points = lists[0].map((x, i) => [x, lists[column][i], error ? lists[error]?.[i] : null]);
      const own = points.filter(([x, y]) => x !== null && y !== null);
      return own.length ? [{ label, kind, points: own }] : [];
    }

    function draw() {
      const centred = (series) => series.map((one) => {
        const mean = one.points.reduce((sum, [, y]) => sum + y, 0) / one.points.length;
        return { ...one, points: one.points.map(([x, y, e]) => [x, y - mean, e]) };
      });
      charts.replaceChildren(
        chart("Score by distance, less its mean", "tokens back", 1, centred([...curve("distance", "kernel K", "kernel", 1), ...curve("distance", "measured", "dots", 2, 3)])),
        chart("Attention by distance", "tokens back", 1, curve("distance", "share per bin", "kernel", 4)),
        chart("Mean path on PC0", "position", 1, [...curve("profiles", "queries", "queries", 1), ...curve("profiles", "keys", "keys", 2), ...curve("profiles", "queries, straight", "queries straight", 3), ...curve("profiles", "keys, straight", "keys straight", 4)]),
        chart("Spectrum", "wavelength in tokens", 0, [...curve("spectrum", "energy of queries", "queries", 1), ...curve("spectrum", "energy of keys", "keys", 2), ...curve("spectrum", "kernel share", "kernel", 3)]),
      );
      const row = data.heads.findIndex(([a, b]) => a === Number(layer.value) && b === Number(head.value));
      body.replaceChildren(...data.numbers.filter(({ values }) => values[row] !== null).map(({ name, meaning, values, errors }) => {
        const line = document.createElement("tr");
        const cells = [0, 1, 2].map(() => document.createElement("td"));
        const code = document.createElement("code");
        code.textContent = name;
        cells[0].append(code);
        cells[1].className = "number";
        cells[1].textContent = String(values[row]).replace("-", "−");
        if (errors && errors[row] !== null) {
          const note = document.createElement("small");
          note.textContent = `± ${Number(errors[row].toPrecision(2))}`;
          cells[1].append(note);
        }
        cells[2].textContent = meaning;
        line.append(...cells);
        return line;
      }));
    }

    function choose() {
      const own = data.heads.filter(([number]) => number === Number(layer.value));
      const before = head.value;
      head.replaceChildren(...own.map(([, number]) => option(number)));
      if (own.some(([, number]) => String(number) === before)) head.value = before;
      draw();
    }

    layer.addEventListener("change", choose);
    head.addEventListener("change", draw);
    form.addEventListener("submit", (event) => event.preventDefault());
    choose();
  }

  const headSection = document.getElementById("head");
  if (headSection) oneHead(headSection);

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
