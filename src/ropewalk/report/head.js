/* Head: the life of one head, and everything that was measured of it at a checkpoint. */

const NEAREST = 5;

class Head {
  constructor(root, store, actions) {
    Object.assign(this, { root, store, actions });
    const { layer, head, time } = root.querySelector("form").elements;
    Object.assign(this, { layer, head, time });
    layer.addEventListener("change", () => this.pick());
    head.addEventListener("change", () => this.pick());
    time.addEventListener("change", () => actions.update({ time: time.value }));
    root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    const steps = store.checkpoints.every(({ step }) => step !== null);
    const rising = store.checkpoints.every(({ step }, i) => i === 0 || step > store.checkpoints[i - 1].step);
    this.times = steps && rising && store.last > 0 ? ["order", "step", "log"] : ["order"];
    time.replaceChildren(...[["order", `${store.noun}s in order`], ["step", "training steps"], ["log", "log of steps"]].filter(([name]) => this.times.includes(name)).map(([name, label]) => new Option(label, name)));
    time.parentElement.hidden = this.times.length < 2;
    root.querySelector("[name=close]").addEventListener("click", () => actions.choose(null));
  }

  pick() {
    const { shape } = this.scene;
    const own = shape.layer.flatMap((layer, i) => (layer === Number(this.layer.value) ? [shape.head[i]] : []));
    const head = own.includes(Number(this.head.value)) ? this.head.value : own[0];
    this.actions.choose(this.layer.value === "" || head === undefined ? null : `${this.layer.value}.${head}`);
  }

  draw(scene) {
    this.scene = scene;
    const { shape, state } = scene;
    const key = state.head && shape.index.has(state.head) ? state.head : null;
    const [layer, head] = key ? key.split(".") : ["", ""];
    const options = (numbers) => [new Option(ABSENT, ""), ...numbers.map((number) => new Option(number, number))];
    // Only where they are others: a list that is open must not be built anew under the reader.
    if (this.shape !== shape) this.layer.replaceChildren(...options([...shape.sizes.keys()]));
    if (this.shape !== shape || this.own !== layer) this.head.replaceChildren(...options(shape.layer.flatMap((one, i) => (String(one) === layer ? [shape.head[i]] : []))));
    Object.assign(this, { shape, own: layer });
    this.layer.value = layer;
    this.head.value = head;
    this.time.value = state.time;
    this.root.querySelector(".hint").hidden = key !== null;
    this.root.querySelector(".body").hidden = key === null;
    this.root.querySelector("[name=close]").hidden = key === null;
    this.root.querySelector("h3").textContent = key ? `Head ${head} of layer ${layer}` : "One head";
    if (key === null) return;
    this.rank(scene, key);
    this.curves(scene, key);
    this.numbers(scene, key);
    const { store, at, x, y, column } = scene;
    const shown = [key, x.name, y.name, column.name, state.time, store.checkpoints[at].shapeNumber].join(" ");
    // Where only the slider moved, the way of the head is the same: a mark moves along it.
    if (shown === this.shown) this.mark(scene);
    else {
      this.trajectories(scene, key);
      this.near(scene, key);
    }
    this.shown = shown;
  }

  /* Mark the checkpoint that the slider is at, along trajectories and categories. */
  mark({ store, at }) {
    [...this.root.querySelector(".trajectories").children].forEach((one) => one.moveCursor(at));
    const place = store.alike(at).indexOf(at);
    [...this.root.querySelectorAll(".cells span")].forEach((one, i) => { one.className = i === place ? "now" : ""; });
  }

  /* Where the head stands in its layer and among all. */
  rank({ store, at, column, x, shape, label }, key) {
    const by = column.words ? x : column;
    const row = store.row(at, key), value = by.value(row);
    const place = (keys) => {
      const values = keys.map((one) => by.value(store.row(at, one))).filter((one) => !Number.isNaN(one));
      return [values.filter((one) => one > value).length + 1, values.length];
    };
    const layer = key.split(".")[0];
    const inLayer = place(store.keys(at).filter((one) => one.split(".")[0] === layer)), inAll = place(store.keys(at));
    const category = store.category ? store.category.text(row) : null;
    const type = { 1: "RoPE", 0: "NoPE" }[shape.rope[shape.index.get(key)]];
    const facts = [type ? `${type} layer` : null, shape.sliding[shape.index.get(key)] ? "sliding window" : null, category === ABSENT ? "no category" : category].filter(Boolean);
    const ranked = Number.isNaN(value) ? `${by.label} is not known` : `${by.label} ${by.text(row)} ${by.errorText(row)}`.trim() + `, the ${ordinal(inLayer[0])} of ${inLayer[1]} in its layer and the ${ordinal(inAll[0])} of all ${inAll[1].toLocaleString("en")}`;
    this.root.querySelector(".rank").textContent = `At ${brief(label)}: ${[...facts, ranked].join("; ")}.`;
  }

  /* Positions of checkpoints along the axis of a trajectory, by the reader's choice. */
  along(state) {
    const { store } = this;
    if (state.time === "order" || !this.times.includes(state.time)) return [(at) => at, store.noun === "model" ? "" : "checkpoints in order"];
    const step = (at) => store.checkpoints[at].step;
    return state.time === "log" ? [(at) => Math.log(step(at) + 1), "training step (logarithmic)"] : [step, "training step"];
  }

  trajectories({ store, state, at, x, y, column }, key) {
    const alike = store.alike(at), connected = store.training;
    const [place, xLabel] = this.along(state);
    const name = (index) => (state.time === "order" || !this.times.includes(state.time) ? brief(store.checkpoints[index].label, alike.length > 4 ? 12 : 24) : short(store.checkpoints[index].step));
    const shown = alike.length > 8 ? alike.filter((_, i) => i % Math.ceil(alike.length / 4) === 0 || i === alike.length - 1) : alike;
    const ticks = shown.map((index) => [index, name(index)]);
    const bands = alike.length === store.checkpoints.length && store.groups.some(([group]) => group) && alike.length > 1
      ? store.groups.map(([group, start, stop]) => [start ? (place(start - 1) + place(start)) / 2 : place(0), stop <= store.last ? (place(stop - 1) + place(stop)) / 2 : place(store.last), group])
      : [];
    const charts = [...new Set([x, y, column])].filter((one) => !one.words).map((one) => {
      const points = known(alike.map((index) => { const row = store.row(index, key); return [index, one.value(row), one.error(row)]; }));
      const kind = `${/_k$|_k_/.test(one.name) ? "keys" : /_q$|_q_/.test(one.name) ? "queries" : "kernel"} marked`;
      return chart(one.label, { xLabel, place, ticks, bands, cursor: at, rules: store.data.thresholds[one.name] ?? [], series: points.length ? [{ label: "", kind, points, open: !connected }] : [] });
    });
    this.root.querySelector(".trajectories").replaceChildren(...charts.filter((one) => one.children.length && alike.length > 1));
    this.strip(store, alike, at, key);
  }

  /* Its category at every checkpoint. */
  strip(store, alike, at, key) {
    const place = this.root.querySelector(".strip");
    place.hidden = !store.category || alike.length < 2;
    if (place.hidden) return;
    const words = alike.map((index) => store.category.text(store.row(index, key)).replace(ABSENT, "none"));
    const cells = alike.map((index, i) => {
      const cell = element("span", { class: index === at ? "now" : "", title: `${brief(store.checkpoints[index].label)}: ${words[i]}` });
      const code = store.category.value(store.row(index, key));
      cell.style.background = Number.isNaN(code) ? "transparent" : look(store, store.category, code).colour;
      return cell;
    });
    const changes = words.filter((word, i) => i && word !== words[i - 1]).length;
    const runs = words.flatMap((word, i) => (i && word === words[i - 1] ? [] : [word]));
    const counted = [...new Set(words)].map((word) => `${word} ${words.filter((one) => one === word).length}`).join(", ");
    // From one model to another nothing changes: they are only counted.
    const told = !store.training ? counted : runs.length > 6 ? `${runs[0]} at first, ${runs.at(-1)} at last, ${changes} changes` : runs.join(", then ");
    const band = element("div", { class: "cells", role: "img", "aria-label": `Category: ${told}` }, ...cells);
    place.replaceChildren(band, element("p", { class: "note" }, `Category: ${told}.`));
  }

  /* Points of a curve of a table: x, y and errors; missing ones are left out. */
  curve(table, label, kind, column, error) {
    const found = this.store.data.curves.tables?.[table]?.[this.curvesAt];
    const i = this.scene.shapeAt(Number(this.curvesAt)).index.get(this.scene.state.head);
    if (!found || i === undefined || found.of[i] < 0 || !(column in found.columns)) return [];
    const xs = found.x[found.of[i]];
    const before = found.of.slice(0, i).filter((one) => one >= 0);
    const start = sum(before.map((one) => found.x[one].length));
    const read = (name) => {
      if (!(name in found.columns)) return xs.map(() => NaN);
      const [codes, middles, steps] = found.columns[name].map((spec) => unpackedOnce(this.store.bytes, spec));
      const [middle, step] = [middles[before.length], steps[before.length]];
      return xs.map((_, point) => { const code = codes[start + point]; return code === this.store.data.packing.missing ? NaN : middle + code * step; });
    };
    const [ys, errors] = [read(column), error ? read(error) : xs.map(() => NaN)];
    const points = known(xs.map((x, point) => [x, ys[point], errors[point]]));
    return points.length ? [{ label, kind, points }] : [];
  }

  curves({ store, at, label }) {
    const place = this.root.querySelector(".curves"), note = this.root.querySelector(".curves-note");
    const there = store.data.curves.at ?? [];
    if (!there.length) {
      place.replaceChildren();
      note.textContent = "";
      return;
    }
    // The nearest checkpoint that has curves, the later one of two.
    this.curvesAt = String(there.reduce((best, one) => (Math.abs(one - at) <= Math.abs(best - at) ? one : best), there[0]));
    const centred = (series) => series.map((one) => {
      const mean = sum(one.points.map(([, y]) => y)) / one.points.length;
      return { ...one, points: one.points.map(([x, y, e]) => [x, y - mean, e]) };
    });
    const charts = [
      curveChart("Score by distance, less its mean", "tokens back", 1, centred([...this.curve("distance", "kernel K", "kernel", "kernel"), ...this.curve("distance", "measured", "dots", "score", "se_score")])),
      curveChart("Attention by distance", "tokens back", 1, this.curve("distance", "share per bin", "kernel", "mass")),
      curveChart("Mean path on PC0", "position", 1, [...this.curve("profiles", "queries", "queries", "q"), ...this.curve("profiles", "keys", "keys", "k"), ...this.curve("profiles", "queries, straight", "queries straight", "line_q"), ...this.curve("profiles", "keys, straight", "keys straight", "line_k")]),
      curveChart("Spectrum", "wavelength in tokens", 0, [...this.curve("spectrum", "energy of queries", "queries", "energy_q"), ...this.curve("spectrum", "energy of keys", "keys", "energy_k"), ...this.curve("spectrum", "kernel share", "kernel", "kernel_share")]),
    ];
    place.replaceChildren(...charts.filter((one) => one.children.length));
    const own = store.checkpoints[Number(this.curvesAt)].label;
    note.textContent = Number(this.curvesAt) === at ? `Curves at ${brief(label)}.` : `Curves at ${brief(own)}: the page has none of ${brief(label)}, which are in distance.csv, profiles.csv and spectrum.csv.`;
  }

  /* Heads whose two quantities stay closest to this head's over all checkpoints. */
  near({ store, at, x, y }, key) {
    const alike = store.alike(at);
    const spans = [x, y].map((one) => { const [low, high] = store.extent(one, alike); return high - low || 1; });
    const distances = store.keys(at).filter((other) => other !== key).map((other) => {
      const parts = alike.flatMap((index) => [x, y].map((one, i) => ((one.value(store.row(index, key)) - one.value(store.row(index, other))) / spans[i]) ** 2)).filter((part) => !Number.isNaN(part));
      return [other, parts.length ? Math.sqrt(sum(parts) / parts.length) : NaN];
    });
    const nearest = distances.filter(([, away]) => !Number.isNaN(away)).sort((a, b) => a[1] - b[1]).slice(0, NEAREST);
    const list = this.root.querySelector(".nearest");
    list.hidden = !nearest.length;
    const over = alike.length > 1 ? `over ${alike.length} ${store.noun}s` : `at ${brief(store.checkpoints[at].label)}`;
    list.replaceChildren(element("span", { class: "note" }, `Nearest in ${x.label} and ${y.label} ${over}:`), ...nearest.map(([other]) => {
      const button = element("button", { type: "button", class: "chip" }, headName(other));
      button.addEventListener("click", () => this.actions.choose(other));
      return button;
    }));
  }

  numbers({ store, at }, key) {
    const row = store.row(at, key);
    const columns = [...store.columns.values()].filter((column) => !column.size && !Number.isNaN(column.value(row)));
    this.root.querySelector("tbody").replaceChildren(...columns.map((column) => {
      const value = element("td", { class: "number" }, column.text(row));
      const error = column.errorText(row);
      if (error) value.append(element("small", {}, error));
      return element("tr", {}, element("td", {}, element("code", {}, column.name)), value, element("td", { class: "wrap" }, column.meaning));
    }));
  }
}

const unpacked = new Map();

function unpackedOnce(bytes, spec) {
  if (!unpacked.has(spec)) unpacked.set(spec, unpack(bytes, spec));
  return unpacked.get(spec);
}

/* A rank in words: the highest, the 2nd highest. */
function ordinal(number) {
  if (number === 1) return "highest";
  const ending = number % 100 > 10 && number % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th";
  return `${number.toLocaleString("en")}${ending} highest`;
}
