/* Brush: heads chosen by layer, type, category and ranges of quantities; their summary, and their numbers as CSV. */

const TYPES = [
  ["rope", "RoPE layers", (shape, i) => shape.rope[i] === 1],
  ["nope", "NoPE layers", (shape, i) => shape.rope[i] === 0],
  ["sliding", "sliding window", (shape, i) => shape.sliding[i] === 1],
  ["full", "full attention", (shape, i) => shape.sliding[i] === 0],
];

/* Layers from text such as "0-3, 7"; null where it is not of that form. */
function layerSet(text) {
  const found = new Set();
  for (const part of text.split(",").map((one) => one.trim()).filter(Boolean)) {
    const match = /^(\d{1,4})(?:\s*-\s*(\d{1,4}))?$/.exec(part);
    if (!match) return null;
    for (let layer = Number(match[1]); layer <= Number(match[2] ?? match[1]); layer += 1) found.add(layer);
  }
  return found;
}

/* Layers as text, neighbours as ranges. */
function layerText(layers) {
  const sorted = [...layers].sort((a, b) => a - b);
  const runs = [];
  sorted.forEach((layer) => {
    const run = runs.at(-1);
    if (run && run[1] === layer - 1) run[1] = layer;
    else runs.push([layer, layer]);
  });
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
}

function isBrushed({ layers, types, categories, ranges }) {
  return Boolean((layerSet(layers)?.size ?? 0) || types.length || categories.length || ranges.length);
}

/* Keys of the heads that fit, at the checkpoint that is held or else at this one; null where nothing is asked. */
function selection(store, brush, at) {
  if (!isBrushed(brush)) return null;
  const { shape, start } = store.checkpoints[brush.hold ?? at];
  const layers = layerSet(brush.layers);
  const tests = [];
  if (layers?.size) tests.push((i) => layers.has(shape.layer[i]));
  if (brush.types.length) {
    const [about, window_] = [["rope", "nope"], ["sliding", "full"]].map((names) => TYPES.filter(([name]) => names.includes(name) && brush.types.includes(name)));
    if (about.length) tests.push((i) => about.some(([, , fits]) => fits(shape, i)));
    if (window_.length) tests.push((i) => window_.some(([, , fits]) => fits(shape, i)));
  }
  if (brush.categories.length) tests.push((i) => brush.categories.includes(store.category.words[store.category.value(start + i)]));
  brush.ranges.forEach(([name, low, high]) => {
    const column = store.column(name);
    tests.push((i) => { const value = column.value(start + i); return value >= low && value <= high; });
  });
  return new Set([...shape.index].filter(([, i]) => tests.every((test) => test(i))).map(([key]) => key));
}

class Brush {
  constructor(root, store, update) {
    Object.assign(this, { root, store, update });
    this.form = root.querySelector("form");
    const { elements } = this.form;
    const present = TYPES.filter(([, , fits]) => store.shapes.some((shape) => shape.layer.some((_, i) => fits(shape, i))));
    // A type that every head has divides nothing.
    const useful = present.filter(([, , fits]) => store.shapes.some((shape) => shape.layer.some((_, i) => !fits(shape, i))));
    this.checks("types", useful.map(([name, label]) => [name, label, ""]));
    this.checks("categories", (store.category?.words ?? []).map((word, code) => { const own = look(store, store.category, code); return [word, word, own.rule, swatch(own)]; }));
    elements.column.append(...store.numeric.map((column) => new Option(column.label, column.name)));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.addRange(); });
    this.form.addEventListener("change", (event) => { if (event.target.matches("[name=layers], [type=checkbox]")) this.read(); });
    elements.layers.addEventListener("input", () => this.read());
    this.form.querySelector("[name=clear]").addEventListener("click", () => this.clear());
    root.querySelector("[name=csv]").addEventListener("click", () => this.download());
  }

  checks(name, options) {
    const field = this.form.querySelector(`fieldset.${name}`);
    field.hidden = options.length < 2;
    field.append(...options.map(([value, label, title, ...before]) => element("label", { class: "check", title }, element("input", { type: "checkbox", name, value }), ...before, label)));
  }

  chosen(name) { return [...this.form.querySelectorAll(`input[name=${name}]:checked`)].map(({ value }) => value); }

  read() {
    const { layers, hold } = this.form.elements;
    layers.setAttribute("aria-invalid", layerSet(layers.value) === null);
    this.update({ layers: layers.value, types: this.chosen("types"), categories: this.chosen("categories"), keep: hold.checked });
  }

  addRange() {
    const { column, low, high } = this.form.elements;
    if (low.value === "" && high.value === "") return;
    const range = [column.value, low.value === "" ? -Infinity : Number(low.value), high.value === "" ? Infinity : Number(high.value)];
    const others = this.scene.state.brush.ranges.filter(([name]) => name !== column.value);
    [low.value, high.value] = ["", ""];
    this.update({ ranges: [...others, range] });
  }

  clear() {
    this.update({ layers: "", types: [], categories: [], ranges: [] });
  }

  draw(scene) {
    this.scene = scene;
    const { state, store, selected, at } = scene;
    const { brush } = state;
    const { layers, hold } = this.form.elements;
    if (document.activeElement !== layers) layers.value = brush.layers;
    this.form.querySelectorAll("input[name=types], input[name=categories]").forEach((box) => { box.checked = brush[box.name].includes(box.value); });
    hold.checked = brush.keep;
    this.form.querySelector(".held").textContent = brush.hold === null ? "" : ` (those that fit at ${brief(store.checkpoints[brush.hold].label)})`;
    this.form.querySelector(".ranges").replaceChildren(...brush.ranges.map(([name, low, high], number) => {
      const ends = [Number.isFinite(low) ? `from ${short(low)}` : "", Number.isFinite(high) ? `to ${short(high)}` : ""].filter(Boolean).join(" ");
      const button = element("button", { type: "button", class: "chip" }, `${store.column(name).label} ${ends} `, element("span", { "aria-hidden": "true" }, "×"));
      button.setAttribute("aria-label", `Remove the range ${store.column(name).label} ${ends}`);
      button.addEventListener("click", () => this.update({ ranges: brush.ranges.filter((_, i) => i !== number) }));
      return button;
    }));
    this.summary(scene, at, selected);
  }

  /* Heads, categories and means of the selection beside the other heads. */
  summary({ store, column, x, y }, at, selected) {
    const keys = store.keys(at);
    const groups = selected ? [["selected", keys.filter((key) => selected.has(key))], ["other heads", keys.filter((key) => !selected.has(key))]] : [["all heads", keys]];
    const columns = [...new Set([x, y, column])].filter((one) => !one.words);
    const kinds = new Set();
    const table = this.root.querySelector("table");
    table.tHead.replaceChildren(element("tr", {}, element("th", { scope: "col" }, "heads"), element("th", { scope: "col", class: "number" }, "number"), ...columns.map((one) => element("th", { scope: "col", class: "number" }, `mean ${one.label}`)), ...(store.category ? [element("th", { scope: "col" }, "categories")] : [])));
    table.tBodies[0].replaceChildren(...groups.map(([name, own]) => {
      const rows = own.map((key) => store.row(at, key));
      const cells = columns.map((one) => {
        const { value, error, kind } = meanOf(store, one, at, rows);
        kinds.add(kind);
        const cell = element("td", { class: "number" }, Number.isNaN(value) ? ABSENT : one.spec.values.decimals === 0 ? short(value) : one.format(value));
        if (Number.isFinite(error)) cell.append(element("small", {}, errorText(error)));
        return cell;
      });
      const counts = (store.category?.words ?? []).map((word, code) => [word, rows.filter((row) => store.category.value(row) === code).length]).filter(([, count]) => count);
      const listed = store.category ? [element("td", { class: "wrap" }, counts.map(([word, count]) => `${word} ${count}`).join(", ") || ABSENT)] : [];
      return element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "number" }, own.length.toLocaleString("en")), ...cells, ...listed);
    }));
    const notes = [];
    if (kinds.has("groups")) notes.push("± is the standard error from leaving out groups of documents.");
    if (kinds.has("apart")) notes.push(`${kinds.has("groups") ? "For some columns" : "Here"} ± takes the errors of heads as independent, for want of the groups of documents in this page; heads read the same documents, so that it is rather too small.`);
    if (kinds.has("size")) notes.push("A mean of sizes has no ± here: noise moves it to one side.");
    if (![...kinds].some((kind) => kind === "groups" || kind === "apart")) notes.push("There are no standard errors.");
    this.root.querySelector(".errors").textContent = `At ${brief(store.checkpoints[at].label)}. ${notes.join(" ")}`;
    this.root.querySelector("[name=csv]").textContent = selected ? `Save the ${groups[0][1].length.toLocaleString("en")} selected heads as CSV` : "Save all heads as CSV";
  }

  download() {
    const { store, selected } = this.scene;
    const text = csv(store, selected);
    const link = element("a", { download: "heads_selected.csv" });
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

/* Rows of heads at all checkpoints, under the names of heads.csv, with the digits that the page has. */
function csv(store, selected) {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const plain = (text) => (text === ABSENT ? "" : text.replace(MINUS, "-"));
  const flag = (value) => (value === null ? "" : value ? "True" : "False");
  const columns = [...store.columns.values()].filter((column) => !column.size);
  const names = columns.flatMap((column) => (column.hasErrors ? [column.name, `se_${column.name}`] : [column.name]));
  const group = store.training ? "phase" : "family";
  const lines = [["checkpoint", "label", group, "step", "layer", "head", "rope", "sliding", ...names].join(",")];
  store.checkpoints.forEach(({ name, label, group: own, step, shape, start }) => {
    shape.layer.forEach((layer, i) => {
      if (selected && !selected.has(`${layer}.${shape.head[i]}`)) return;
      const row = start + i;
      const numbers = columns.flatMap((column) => {
        const value = plain(column.text(row));
        if (!column.hasErrors) return [value];
        const error = column.error(row);
        return [value, Number.isNaN(error) ? "" : String(error)];
      });
      lines.push([quoted(name), quoted(label), quoted(own), step ?? "", layer, shape.head[i], flag(shape.rope[i]), flag(shape.sliding[i]), ...numbers.map(quoted)].join(","));
    });
  });
  return `${lines.join("\n")}\n`;
}
