/* Matrix: layers down, heads across, coloured by a quantity, or by its change between two checkpoints. */

class Matrix {
  constructor(root, actions) {
    this.canvas = root.querySelector("canvas");
    this.title = root.querySelector("figcaption");
    this.legend = root.querySelector(".legend");
    this.actions = actions;
    this.canvas.addEventListener("pointermove", (event) => actions.point(this.keyAt(event)));
    this.canvas.addEventListener("pointerleave", () => actions.point(null));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /* The layer and head under the pointer; a click beside the cells is on a layer alone. */
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const { left, top, width, height } = this.grid;
    const layer = Math.floor((event.clientY - box.top - top) / height);
    const head = Math.floor((event.clientX - box.left - left) / width);
    return [layer, head];
  }

  keyAt(event) {
    if (!this.grid) return null;
    const key = this.cellAt(event).join(".");
    return this.scene.shape.index.has(key) ? key : null;
  }

  click(event) {
    const key = this.keyAt(event);
    if (key) return this.actions.choose(key);
    const [layer, head] = this.cellAt(event);
    if (head < 0 && this.scene.shape.sizes.has(layer)) this.actions.toggleLayer(layer);
    return undefined;
  }

  /* Arrow keys move from head to head, over gaps where heads were not measured. */
  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const { shape, cursor, state } = this.scene;
    if (event.key === "Enter" || event.key === " ") {
      if (cursor) this.actions.choose(cursor);
    } else if (event.key === "Escape") this.actions.choose(null);
    else if (step) {
      const start = [cursor, state.head].find((key) => key && shape.index.has(key));
      if (!start) this.actions.point([...shape.index.keys()][0]);
      else {
        let [layer, head] = start.split(".").map(Number);
        do { layer += step[0]; head += step[1]; } while (layer >= 0 && head >= 0 && layer < shape.layers && head < shape.heads && !shape.index.has(`${layer}.${head}`));
        if (shape.index.has(`${layer}.${head}`)) this.actions.point(`${layer}.${head}`);
      }
    } else return;
    event.preventDefault();
  }

  draw(scene) {
    this.scene = scene;
    const { shape, column, colours, scale, selected, cursor, state, store, changes } = scene;
    const width = this.canvas.clientWidth;
    const left = 34, top = 18, right = 14;
    const cell = { left, top, width: Math.min(44, (width - left - right) / shape.heads), height: Math.min(30, Math.max(4, 380 / shape.layers)) };
    this.grid = cell;
    const pen = prepared(this.canvas, width, top + cell.height * shape.layers + 16);
    const gap = Math.min(cell.width, cell.height) > 7 ? 1 : 0;
    pen.textBaseline = "middle";
    shape.layer.forEach((layer, i) => {
      const key = `${layer}.${shape.head[i]}`;
      const x = left + shape.head[i] * cell.width, y = top + layer * cell.height;
      const [code, shown] = scene.shade(i, key);
      pen.globalAlpha = (selected && !selected.has(key)) || !shown ? 0.14 : 1;
      pen.fillStyle = Number.isNaN(code) ? colours.missing : column.words ? look(store, column, code).colour : scale.colour(code, colours);
      pen.fillRect(x, y, cell.width - gap, cell.height - gap);
      if (Number.isNaN(code)) {
        pen.strokeStyle = colours.soft;
        pen.lineWidth = 0.75;
        pen.beginPath();
        pen.moveTo(x + 1, y + cell.height - gap - 1);
        pen.lineTo(x + cell.width - gap - 1, y + 1);
        pen.stroke();
      } else if (column.words && cell.width > 12 && cell.height > 11) {
        pen.fillStyle = dark(look(store, column, code).colour) ? "#ffffff" : "#111111";
        pen.textAlign = "center";
        pen.fillText(column.words[code][0].toUpperCase(), x + (cell.width - gap) / 2, y + (cell.height - gap) / 2 + 0.5);
      }
    });
    pen.globalAlpha = 1;
    this.labels(pen, scene, cell);
    [[cursor, colours.ink, [2, 2]], [state.head, colours.ink, []]].forEach(([key, colour, dashes]) => {
      if (!key || !shape.index.has(key)) return;
      const [layer, head] = key.split(".").map(Number);
      pen.strokeStyle = colours.paper;
      pen.lineWidth = 4;
      pen.setLineDash([]);
      pen.strokeRect(left + head * cell.width - 1, top + layer * cell.height - 1, cell.width + 1, cell.height + 1);
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.setLineDash(dashes);
      pen.strokeRect(left + head * cell.width - 1, top + layer * cell.height - 1, cell.width + 1, cell.height + 1);
      pen.setLineDash([]);
    });
    const [from, to] = [state.from, state.to].map((at) => brief(store.checkpoints[at].label));
    const name = changes ? `${column.label}, change from ${from} to ${to}` : `${column.label} at ${brief(scene.label)}`;
    this.title.textContent = name;
    this.canvas.setAttribute("aria-label", `Matrix of ${shape.layer.length} heads by layer and head: ${name}. Arrow keys move, Enter chooses a head.`);
    this.explain(scene);
  }

  labels(pen, { shape, colours, store }, cell) {
    pen.fillStyle = colours.soft;
    pen.textAlign = "right";
    const every = [1, 2, 5, 10, 20].find((step) => step * cell.height >= 13) ?? 50;
    for (let layer = 0; layer < shape.layers; layer += every) pen.fillText(String(layer), cell.left - 6, cell.top + (layer + 0.5) * cell.height);
    pen.textAlign = "center";
    const across = [1, 2, 4, 8, 16, 32].find((step) => step * cell.width >= 20) ?? 64;
    for (let head = 0; head < shape.heads; head += across) pen.fillText(String(head), cell.left + (head + 0.5) * cell.width, cell.top - 9);
    pen.textAlign = "left";
    pen.fillText("layer ↓  head →", cell.left, cell.top + cell.height * shape.layers + 9);
    const right = cell.left + cell.width * shape.heads + 2;
    const types = new Map(shape.layer.map((layer, i) => [layer, [shape.rope[i], shape.sliding[i]]]));
    types.forEach(([rope, sliding], layer) => {
      const y = cell.top + (layer + 0.5) * cell.height, r = Math.min(4, cell.height / 2);
      if (rope === 0) {
        pen.fillStyle = store.data.nope_colour;
        pen.beginPath();
        pen.moveTo(right, y);
        pen.lineTo(right + 1.6 * r, y - r);
        pen.lineTo(right + 1.6 * r, y + r);
        pen.fill();
      }
      if (sliding) {
        pen.strokeStyle = colours.soft;
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(right + 9, y - r);
        pen.lineTo(right + 9, y + r);
        pen.stroke();
      }
    });
  }

  /* What colours and marks mean. */
  explain(scene) {
    const { column, scale, colours, store, shape, changes, state } = scene;
    const parts = [];
    if (column.words) {
      column.words.forEach((word, code) => parts.push(element("span", { class: "item" }, swatch(look(store, column, code)), word)));
      if (changes) parts.push(element("span", { class: "item" }, "pale: unchanged"));
    } else if (scale.known) {
      const bar = element("span", { class: "bar" });
      const stops = Array.from({ length: 9 }, (_, i) => scale.shade(i / 8, colours));
      bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
      const ends = [0, 0.5, 1].map((share) => element("span", {}, short(scale.value(share))));
      parts.push(element("span", { class: "ramp" }, bar, element("span", { class: "ends" }, ...ends)));
      if (scale.log) parts.push(element("span", { class: "item" }, "logarithmic"));
    }
    if (shape.rope.includes(0)) parts.push(element("span", { class: "item" }, mark("◂", store.data.nope_colour), "NoPE layer"));
    if (shape.sliding.includes(1)) parts.push(element("span", { class: "item" }, mark("❘", colours.soft), "sliding window"));
    if (changes && state.beyond) parts.push(element("span", { class: "item" }, "pale: within its error"));
    if (shape.layer.some((layer, i) => Number.isNaN(scene.shade(i, `${layer}.${shape.head[i]}`)[0]))) parts.push(element("span", { class: "item" }, "struck out: no value"));
    if (shape.layer.length < shape.layers * shape.heads) parts.push(element("span", { class: "item" }, "empty: not measured"));
    this.legend.replaceChildren(...parts);
  }
}

function mark(text, colour) {
  const made = element("span", { "aria-hidden": "true" }, text);
  made.style.color = colour;
  return made;
}

/* Whether white is easier to read on a colour than black. */
function dark(colour) {
  const [r, g, b] = channels(colour).map((one) => (one / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18;
}
