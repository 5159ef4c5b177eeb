/* The table of heads is drawn a page at a time, so that thousands of rows stay quick. */

function headTable(root, store) {
  const table = root.querySelector("table");
  const headers = [...table.tHead.rows[0].cells];
  const names = headers.map((header) => header.dataset.column);
  const controls = root.querySelector("form").elements;
  const status = root.querySelector("[role=status]");
  const [previous, next] = root.querySelectorAll(".pager button");
  const facts = { checkpoint: [], layer: [], head: [], k_head: [], layer_type: [] };
  store.checkpoints.forEach(({ shape }, at) => shape.layer.forEach((layer, i) => {
    facts.checkpoint.push(at);
    facts.layer.push(layer);
    facts.head.push(shape.head[i]);
    facts.k_head.push(shape.k_head?.[i] ?? null);
    facts.layer_type.push({ 1: "RoPE", 0: "NoPE" }[shape.rope[i]] ?? null);
  }));
  let rows = facts.layer.map((_, row) => row);
  let shown = rows;
  let page = 0;

  /* What a row is sorted by; null where missing. */
  function keyed(name) {
    if (name in facts) return (row) => facts[name][row];
    const column = store.column(name);
    return (row) => { const value = column.value(row); return Number.isNaN(value) ? null : column.words ? column.words[value] : value; };
  }

  const texts = ["layer_type", ...names.filter((name) => store.column(name)?.words)].map(keyed);

  /* Every word must fit: L12, H3 and L12H3 name layer and head exactly, other words the start of a text of the row. */
  function matcher(text) {
    const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const exact = /^(?:l(\d+))?(?:h(\d+))?$/.exec(word);
      if (exact) {
        const [, layer, head] = exact;
        return (row) => (layer === undefined || facts.layer[row] === Number(layer)) && (head === undefined || facts.head[row] === Number(head));
      }
      return (row) => texts.some((read) => read(row) !== null && read(row).toLowerCase().startsWith(word));
    });
    return (row) => tests.every((test) => test(row));
  }

  function filter() {
    const at = controls.checkpoint.value;
    const matches = matcher(controls.filter.value);
    shown = rows.filter((row) => (at === "" || facts.checkpoint[row] === Number(at)) && matches(row));
    page = 0;
    draw();
  }

  function cell(row, name, header) {
    const made = element("td", header.classList.contains("number") ? { class: "number" } : {});
    if (name === "checkpoint") made.textContent = store.checkpoints[facts.checkpoint[row]].label;
    else if (name in facts) made.textContent = facts[name][row] ?? ABSENT;
    else {
      const column = store.column(name);
      made.textContent = column.text(row);
      const error = column.words || Number.isNaN(column.value(row)) ? "" : column.errorText(row);
      if (error) made.append(element("small", {}, error));
    }
    return made;
  }

  function draw() {
    const start = page * PAGE;
    const visible = shown.slice(start, start + PAGE);
    table.tBodies[0].replaceChildren(...visible.map((row) => element("tr", {}, ...names.map((name, i) => cell(row, name, headers[i])))));
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
    const read = keyed(names[column]);
    const keys = facts.layer.map((_, row) => read(row));
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
