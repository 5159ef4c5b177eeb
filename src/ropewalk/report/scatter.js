/* Scatter: two quantities of every head, or one quantity at two checkpoints. */

const TRAIL = 12;

class Scatter {
  constructor(root, actions) {
    this.canvas = root.querySelector("canvas");
    this.title = root.querySelector("figcaption");
    this.legend = root.querySelector(".legend");
    this.actions = actions;
    this.drag = null;
    const canvas = this.canvas;
    canvas.addEventListener("pointerdown", (event) => { this.drag = { from: this.place(event), to: null }; });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => { if (!this.drag) actions.point(null); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  nearest([x, y]) {
    let best = null, least = 14 ** 2;
    this.points.forEach((point) => {
      const away = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (away < least) [best, least] = [point.key, away];
    });
    return best;
  }

  move(event) {
    const at = this.place(event);
    if (!this.drag) {
      const key = this.nearest(at);
      this.canvas.style.cursor = key ? "pointer" : "crosshair";
      this.actions.point(key);
      return;
    }
    const [x, y] = this.drag.from;
    if (!this.drag.to && Math.hypot(at[0] - x, at[1] - y) < 6) return;
    // Fingers scroll the page; only a mouse or pen draws a box.
    if (event.pointerType === "touch") return;
    if (!this.drag.to) this.canvas.setPointerCapture(event.pointerId);
    this.drag.to = at;
    this.draw(this.scene);
  }

  release(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (!drag.to) {
      this.actions.choose(this.nearest(this.place(event)));
      return;
    }
    const { frame, axes } = this;
    const share = ([x, y]) => [(x - frame.left) / frame.width, 1 - (y - frame.top) / frame.height];
    const ends = [share(drag.from), share(drag.to)];
    const ranges = axes.map((axis, i) => ends.map((end) => axis.value(Math.min(1, Math.max(0, end[i])))).sort((a, b) => a - b));
    this.actions.box(ranges);
  }

  /* Left and right go from head to head by the quantity across, up and down by the other one. */
  key(event) {
    const step = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", -1], ArrowDown: ["y", 1] }[event.key];
    const { cursor } = this.scene;
    if (event.key === "Enter" || event.key === " ") {
      if (cursor) this.actions.choose(cursor);
    } else if (event.key === "Escape") this.actions.choose(null);
    else if (step && this.points.length) {
      const ordered = [...this.points].sort((a, b) => a[step[0]] - b[step[0]]);
      const own = ordered.findIndex(({ key }) => key === cursor);
      const next = own < 0 ? 0 : Math.min(ordered.length - 1, Math.max(0, own + step[1]));
      this.actions.point(ordered[next].key);
    } else return;
    event.preventDefault();
  }

  draw(scene) {
    this.scene = scene;
    const { colours, selected, store, state, cursor, changes } = scene;
    const width = this.canvas.clientWidth;
    const height = Math.min(430, Math.max(260, 0.86 * width));
    const pen = prepared(this.canvas, width, height);
    const frame = { left: 46, top: 10, width: width - 60, height: height - 50 };
    const axes = scene.axes;
    Object.assign(this, { frame, axes });
    const X = (value) => frame.left + axes[0].share(value) * frame.width;
    const Y = (value) => frame.top + (1 - axes[1].share(value)) * frame.height;
    this.rules(pen, scene, X, Y);
    this.points = [];
    scene.pairs.forEach(([a, b, row], key) => {
      if (!Number.isNaN(a) && !Number.isNaN(b)) this.points.push({ key, x: X(a), y: Y(b), row });
    });
    if (state.trails && !changes) this.trails(pen, scene, X, Y);
    const outline = colours.paper;
    const radius = this.points.length > 1500 ? 2 : this.points.length > 300 ? 3 : 4;
    const own = (key) => !selected || selected.has(key);
    [false, true].forEach((front) => {
      this.points.forEach(({ key, x, y, row }) => {
        if (own(key) !== front || key === state.head || key === cursor) return;
        const code = scene.words ? scene.words.value(row) : NaN;
        const { colour, marker: kind } = look(store, scene.words, code);
        pen.globalAlpha = front && scene.shows(key) ? 0.9 : 0.13;
        marker(pen, kind, x, y, radius);
        pen.fillStyle = colour;
        pen.fill();
        if (front) {
          pen.lineWidth = 0.7;
          pen.strokeStyle = colours.edge;
          pen.stroke();
        }
      });
    });
    pen.globalAlpha = 1;
    this.points.filter(({ key }) => key === state.head || key === cursor).forEach(({ key, x, y, row }) => {
      this.cross(pen, scene, key, X, Y);
      const { colour, marker: kind } = look(store, scene.words, scene.words ? scene.words.value(row) : NaN);
      marker(pen, kind, x, y, radius + 2.5);
      pen.fillStyle = colour;
      pen.fill();
      pen.lineWidth = 3.5;
      pen.strokeStyle = outline;
      pen.stroke();
      pen.lineWidth = 1.8;
      pen.strokeStyle = colours.ink;
      pen.stroke();
    });
    if (this.drag?.to) {
      const [[x1, y1], [x2, y2]] = [this.drag.from, this.drag.to];
      pen.strokeStyle = colours.accent;
      pen.setLineDash([4, 3]);
      pen.strokeRect(Math.min(x1, x2), Math.min(y1, y2), Math.abs(x1 - x2), Math.abs(y1 - y2));
      pen.setLineDash([]);
    }
    this.words(scene);
  }

  words({ pairNames, pairs, store, words, label, changes }) {
    this.title.textContent = `${pairNames[1]} against ${pairNames[0]}${changes ? "" : ` at ${brief(label)}`}`;
    this.canvas.setAttribute("aria-label", `Scatter of ${this.points.length} heads: ${this.title.textContent}. Arrow keys go from head to head, Enter chooses one.`);
    const parts = [];
    if (words) {
      const counts = new Map();
      pairs.forEach(([, , row]) => { const code = words.value(row); counts.set(code, (counts.get(code) ?? 0) + 1); });
      words.words.forEach((word, code) => {
        if (counts.has(code)) parts.push(element("span", { class: "item" }, swatch(look(store, words, code)), `${word} ${counts.get(code)}`));
      });
    }
    const left = pairs.size - this.points.length;
    if (left) parts.push(element("span", { class: "item" }, `${left} without a value`));
    if (changes) parts.push(element("span", { class: "item" }, "dashed: no change"));
    else if (this.axes.some((_, i) => this.scene.marks[i].length)) parts.push(element("span", { class: "item" }, "dashed: thresholds of the categories"));
    this.legend.replaceChildren(...parts);
  }

  rules(pen, { colours, pairLabels, marks, changes }, X, Y) {
    const { frame, axes } = this;
    const right = frame.left + frame.width, bottom = frame.top + frame.height;
    pen.lineWidth = 1;
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.soft;
    pen.textBaseline = "middle";
    const line = (x1, y1, x2, y2) => { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); };
    axes[0].ticks(frame.width > 300 ? 6 : 4).forEach((tick) => {
      line(X(tick), frame.top, X(tick), bottom);
      pen.textAlign = "center";
      pen.fillText(short(tick), X(tick), bottom + 11);
    });
    axes[1].ticks().forEach((tick) => {
      line(frame.left, Y(tick), right, Y(tick));
      pen.textAlign = "right";
      pen.fillText(short(tick), frame.left - 6, Y(tick));
    });
    pen.setLineDash([5, 4]);
    pen.strokeStyle = colours.soft;
    const inside = (axis, value) => value > axis.low && value < axis.high;
    marks[0].filter((value) => inside(axes[0], value)).forEach((value) => line(X(value), frame.top, X(value), bottom));
    marks[1].filter((value) => inside(axes[1], value)).forEach((value) => line(frame.left, Y(value), right, Y(value)));
    if (changes) line(X(axes[0].low), Y(axes[0].low), X(axes[0].high), Y(axes[0].high));
    pen.setLineDash([]);
    pen.fillStyle = colours.ink;
    pen.textAlign = "center";
    pen.fillText(brief(pairLabels[0], 48), frame.left + frame.width / 2, bottom + 30);
    pen.save();
    pen.translate(9, frame.top + frame.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(brief(pairLabels[1], 48), 0, 0);
    pen.restore();
  }

  /* Errors of a head in both directions. */
  cross(pen, scene, key, X, Y) {
    const [a, b] = scene.pairs.get(key);
    const [e, f] = scene.pairErrors(key);
    pen.strokeStyle = scene.colours.ink;
    pen.lineWidth = 1.4;
    pen.beginPath();
    if (Number.isFinite(e)) { pen.moveTo(X(a - e), Y(b)); pen.lineTo(X(a + e), Y(b)); }
    if (Number.isFinite(f)) { pen.moveTo(X(a), Y(b - f)); pen.lineTo(X(a), Y(b + f)); }
    pen.stroke();
  }

  /* Where heads came from: the last checkpoints of all, or of those that are selected; all of the chosen one. */
  trails(pen, { store, state, at, selected, colours, x, y }, X, Y) {
    const alike = store.alike(at).filter((index) => index <= at);
    pen.lineWidth = 1;
    this.points.forEach(({ key }) => {
      if (selected && !selected.has(key) && key !== state.head) return;
      const own = key === state.head;
      const steps = own ? alike : alike.slice(-TRAIL);
      pen.strokeStyle = own ? colours.ink : colours.soft;
      pen.globalAlpha = own ? 1 : 0.3;
      pen.beginPath();
      let drawn = false;
      steps.forEach((index) => {
        const row = store.row(index, key);
        const [a, b] = [x.value(row), y.value(row)];
        if (Number.isNaN(a) || Number.isNaN(b)) { drawn = false; return; }
        if (drawn) pen.lineTo(X(a), Y(b));
        else pen.moveTo(X(a), Y(b));
        drawn = true;
      });
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }
}
