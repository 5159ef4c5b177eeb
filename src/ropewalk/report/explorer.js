/* The explorer: linked views of the same heads, one state for all of them, kept in the address. */

class Explorer {
  constructor(root, store) {
    Object.assign(this, { root, store, cursor: null, waiting: false, playing: null });
    this.state = stateOf(location.hash, store);
    const actions = {
      choose: (key) => this.update({ head: key }),
      point: (key) => this.point(key),
      toggleLayer: (layer) => this.toggleLayer(layer),
      box: (ranges) => this.box(ranges),
      update: (changes) => this.update(changes),
    };
    this.views = [
      new Matrix(root.querySelector("#matrix"), actions),
      new Scatter(root.querySelector("#scatter"), actions),
      new Compare(root.querySelector("#changes"), actions),
      new Brush(root.querySelector("#brush"), store, (changes) => this.brush(changes)),
      new Head(root.querySelector("#head"), store, actions),
    ];
    this.controls();
    this.leftOut();
    new ResizeObserver(() => this.schedule()).observe(root.querySelector(".views"));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    // On paper colours are those of the light theme, whatever the screen has.
    window.addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); this.draw(); });
    window.addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); this.draw(); });
    window.addEventListener("hashchange", () => {
      if (!location.hash.startsWith(PREFIX) || location.hash === addressOf(this.state, store)) return;
      this.state = stateOf(location.hash, store);
      this.schedule();
    });
    root.querySelector(".wait").hidden = true;
    root.querySelector(".explorer").hidden = false;
    this.draw();
    root.dataset.drawn = Math.round(performance.now());
    if (location.hash === "#measure") this.measure();
  }

  /* Fill the controls and listen to them. */
  controls() {
    const { root, store } = this;
    const { elements } = root.querySelector("form.tools");
    const option = (column) => { const made = new Option(column.label, column.name); made.title = column.meaning; return made; };
    elements.matrix.append(...[...store.columns.values()].map(option));
    [elements.x, elements.y].forEach((list) => list.append(...store.numeric.map(option)));
    const names = store.checkpoints.map(({ label }, index) => [brief(label, 60), index]);
    [elements.from, elements.to].forEach((list) => list.append(...names.map(([label, index]) => new Option(label, index))));
    ["matrix", "x", "y", "scale"].forEach((name) => elements[name].addEventListener("change", () => this.update({ [name]: elements[name].value })));
    ["from", "to"].forEach((name) => elements[name].addEventListener("change", () => this.update({ [name]: Number(elements[name].value) })));
    ["trails", "compare", "beyond"].forEach((name) => elements[name].addEventListener("change", () => this.update({ [name]: elements[name].checked })));
    elements.at.max = store.last;
    elements.at.addEventListener("input", () => { this.stop(); this.update({ at: Number(elements.at.value) }); });
    elements.play.addEventListener("click", () => (this.playing === null ? this.play() : this.stop()));
    root.querySelector("form.tools").addEventListener("submit", (event) => event.preventDefault());
    root.querySelectorAll(".several").forEach((part) => { part.hidden = store.last === 0; });
    this.elements = elements;
  }

  update(changes) {
    Object.assign(this.state, changes);
    this.schedule();
    clearTimeout(this.writing);
    // Browsers count changes of the address: it is written when the reader pauses.
    this.writing = setTimeout(() => this.write(), 250);
  }

  write() {
    const address = addressOf(this.state, this.store);
    if (address !== location.hash && (address || location.hash.startsWith(PREFIX))) history.replaceState(null, "", address || "#explore");
  }

  /* Selected heads are those that fit where the slider stood when they were, unless they are to be chosen ever anew. */
  brush(changes) {
    const before = this.state.brush, after = { ...before, ...changes };
    after.hold = after.keep && isBrushed(after) ? before.hold ?? this.current() : null;
    this.update({ brush: after });
  }

  toggleLayer(layer) {
    const layers = layerSet(this.state.brush.layers) ?? new Set();
    if (!layers.delete(layer)) layers.add(layer);
    this.brush({ layers: layerText(layers) });
  }

  /* A box in the scatter is a range of each of its quantities, as they are here and now. */
  box(ranges) {
    const { state } = this, names = [state.x, state.y];
    // Between two checkpoints both directions are one quantity: a box there is no range of it.
    if (state.compare) return;
    state.brush.hold = null;
    const rounded = ranges.map((ends) => ends.map((end) => Number(end.toPrecision(4))));
    const others = state.brush.ranges.filter(([name]) => !names.includes(name));
    this.brush({ ranges: [...others, ...names.map((name, i) => [name, ...rounded[i]])] });
  }

  point(key) {
    if (this.cursor === key) return;
    this.cursor = key;
    this.schedule();
    this.readout();
  }

  current() { return this.state.compare ? this.state.to : this.state.at; }

  play() {
    const { store, state, elements } = this;
    const pause = Math.min(700, Math.max(40, 8000 / store.checkpoints.length));
    if (state.at === store.last) this.update({ at: 0 });
    elements.play.textContent = "Pause";
    let before = performance.now();
    const step = (now) => {
      if (now - before >= pause) {
        before = now;
        if (this.state.at >= store.last) { this.stop(); return; }
        this.update({ at: this.state.at + 1 });
      }
      this.playing = requestAnimationFrame(step);
    };
    this.playing = requestAnimationFrame(step);
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.elements.play.textContent = "Play";
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /* Everything that the views draw from. */
  scene() {
    const { store, state, cursor } = this;
    const at = this.current();
    const checkpoint = store.checkpoints[at], { shape, start } = checkpoint;
    const [column, x, y] = [state.matrix, state.x, state.y].map((name) => store.column(name));
    const changes = state.compare ? changesOf(store, column, state.from, state.to) : null;
    const selected = selection(store, state.brush, at);
    const alike = state.scale === "fixed" ? store.alike(at) : [at];
    const shows = (key) => !changes || !state.beyond || Boolean(changes.get(key)?.beyond);
    const base = { store, state, at, shape, column, x, y, changes, selected, cursor, shows, label: checkpoint.label, words: store.category, shapeAt: (index) => store.checkpoints[index].shape, colours: this.colours() };
    const shade = (i, key) => {
      if (!changes) return [column.value(start + i), true];
      const change = changes.get(key);
      if (column.words) return [column.value(start + i), change?.value === 1];
      return [change ? change.value : NaN, shows(key)];
    };
    const sizes = changes ? [...changes.values()].map(({ value }) => value).filter((value) => !Number.isNaN(value)) : [];
    const scale = changes ? new Scale(sizes.length ? [Math.min(...sizes), Math.max(...sizes)] : [NaN, NaN], { symmetric: true }) : new Scale(store.extent(column, alike));
    return { ...base, shade, scale, ...(changes ? this.pairOfTimes(base) : this.pairOfColumns(base, alike)) };
  }

  pairOfColumns({ store, at, x, y }, alike) {
    const pairs = new Map(store.keys(at).map((key) => { const row = store.row(at, key); return [key, [x.value(row), y.value(row), row]]; }));
    const marks = [x, y].map(({ name }) => store.data.thresholds[name] ?? []);
    const axes = [x, y].map((column) => axis(store.extent(column, alike), column));
    return { pairs, marks, axes, pairNames: [x.label, y.label], pairLabels: [x.label, y.label], pairErrors: (key) => [x, y].map((column) => column.error(pairs.get(key)[2])) };
  }

  pairOfTimes({ store, state, column, x, changes }) {
    const own = column.words ? x : column;
    const pairs = new Map([...changes.keys()].map((key) => {
      const rows = [state.from, state.to].map((index) => store.row(index, key));
      return [key, [...rows.map((row) => own.value(row)), rows[1], rows[0]]];
    }));
    const labels = [state.from, state.to].map((index) => store.checkpoints[index].label);
    const both = axis(store.extent(own, [state.from, state.to]), own);
    const names = labels.map((label) => `${own.label} at ${brief(label)}`);
    return { pairs, marks: [[], []], axes: [both, both], pairNames: names, pairLabels: names, pairErrors: (key) => [pairs.get(key)[3], pairs.get(key)[2]].map((row) => own.error(row)) };
  }

  colours() {
    const colours = theme();
    return { ...colours, edge: mix(colours.ink, colours.paper, 0.35) };
  }

  draw() {
    const scene = this.scene();
    this.last = scene;
    const { elements, state, store } = { elements: this.elements, state: this.state, store: this.store };
    ["matrix", "x", "y", "scale", "from", "to", "at"].forEach((name) => { elements[name].value = state[name]; });
    ["trails", "compare", "beyond"].forEach((name) => { elements[name].checked = state[name]; });
    this.root.querySelector(".pair").hidden = !state.compare;
    this.root.querySelector(".slider").hidden = state.compare || store.last === 0;
    const { label, group } = store.checkpoints[state.at];
    const text = `${brief(label, 40)}${group ? `, ${brief(group, 40)}` : ""}`;
    elements.at.setAttribute("aria-valuetext", text);
    this.root.querySelector("output").textContent = `${text} (${state.at + 1} of ${store.checkpoints.length})`;
    this.views.forEach((view) => view.draw(scene));
    this.readout();
  }

  /* The head under the pointer, in words. */
  readout() {
    const { store, state, cursor, last } = this;
    const key = cursor ?? state.head;
    const line = this.root.querySelector(".readout");
    if (!key || !last.shape.index.has(key)) {
      line.textContent = "Point at a head for its numbers; click for everything about it. Drag in the scatter to select heads.";
      return;
    }
    const row = store.row(last.at, key);
    const told = [...new Set([last.x, last.y, last.column])].map((column) => `${column.label} ${column.text(row)} ${column.errorText(row)}`.trim());
    if (store.category && last.column !== store.category) told.push(store.category.text(row).replace(ABSENT, "no category"));
    const change = last.changes?.get(key);
    if (change && !last.column.words && !Number.isNaN(change.value)) told.push(`changed by ${last.column.format(change.value)} ${errorText(change.error)}`.trim());
    line.textContent = `${headName(key)}: ${told.join(", ")}`;
  }

  /* What did not fit into the page. */
  leftOut() {
    const { values = [], errors = [] } = this.store.data.left_out;
    const listed = (names) => (names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} more` : names.join(", "));
    const told = [values.length ? `the columns ${listed(values)}` : "", errors.length ? `the errors of ${listed(errors)}` : ""].filter(Boolean);
    const note = this.root.querySelector(".left-out");
    note.hidden = !told.length;
    note.textContent = `To keep the page small it leaves out ${told.join(" and ")}: they are in heads.csv.`;
  }

  /* Drive the slider from end to end, a step a frame with a head chosen, and say how many frames a second were drawn. */
  measure() {
    const { store } = this;
    this.state.head ??= store.keys(0)[0];
    let frames = 0, start = null;
    const step = (now) => {
      start ??= now;
      if (now - start > 3000) {
        this.root.dataset.frames = (1000 * frames / (now - start)).toFixed(1);
        return;
      }
      frames += 1;
      this.state.at = frames % store.checkpoints.length;
      this.draw();
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}

/* The axis of a column: from end to end of its values with a little room; correlations from -1 or 0 to 1. */
function axis([low, high], column) {
  const scale = new Scale([low, high]);
  scale.turns = false;
  if (/^(abs_)?r_[qk]/.test(column.name) && low >= -1 && high <= 1) [scale.low, scale.high, scale.log] = [low < -0.05 ? -1 : low < 0 ? -0.1 : 0, 1, false];
  else if (scale.log) [scale.low, scale.high] = [low / 1.15, high * 1.15];
  else if (scale.known) {
    const room = (high - low || Math.abs(high) || 1) * 0.04;
    [scale.low, scale.high] = [low - room, high + room];
  }
  return scale;
}
