/* Colours, scales and shapes that the views share. */

const SVG = document.querySelector("svg").namespaceURI;

/* Colours of the theme that is on, as the style sheet names them. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["paper", "ink", "soft", "line", "accent", "low", "middle", "high", "least", "most", "between", "missing"].map((name) => [name, read(name)]));
}

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function mix(from, to, share) {
  const [a, b] = [channels(from), channels(to)];
  return `rgb(${a.map((one, i) => Math.round(one + (b[i] - one) * share)).join(",")})`;
}

/* A scale of values: where its ends lie, whether it is of logarithms, and whether it turns at 0. */
class Scale {
  constructor([low, high], { symmetric = false } = {}) {
    this.known = Number.isFinite(low);
    // A few values just beyond 0 do not make a quantity of two signs.
    this.turns = this.known && (symmetric || (low < 0 && high > 0 && Math.min(-low, high) > 0.15 * Math.max(-low, high)));
    this.log = !this.turns && low > 0 && high / low > 100;
    const size = Math.max(Math.abs(low), Math.abs(high));
    [this.low, this.high] = this.turns ? [-size || -1, size || 1] : [low, high];
  }

  /* Share of the way from the low end to the high one. */
  share(value) {
    if (this.high === this.low) return 0.5;
    const [at, low, high] = this.log ? [value, this.low, this.high].map(Math.log) : [value, this.low, this.high];
    return Math.min(1, Math.max(0, (at - low) / (high - low)));
  }

  value(share) {
    return this.log ? this.low * (this.high / this.low) ** share : this.low + share * (this.high - this.low);
  }

  colour(value, colours) {
    return this.shade(this.share(value), colours);
  }

  shade(share, colours) {
    if (!this.turns) return share < 0.5 ? mix(colours.least, colours.between, 2 * share) : mix(colours.between, colours.most, 2 * share - 1);
    return share < 0.5 ? mix(colours.low, colours.middle, 2 * share) : mix(colours.middle, colours.high, 2 * share - 1);
  }

  ticks(count = 5) {
    if (!this.known) return [];
    if (this.high === this.low) return [this.low];
    if (this.log) {
      const powers = [];
      for (let power = Math.ceil(Math.log10(this.low)); 10 ** power <= this.high; power += 1) powers.push(10 ** power);
      return powers.length > 1 ? powers.filter((_, i) => i % Math.ceil(powers.length / count) === 0) : [this.low, this.high];
    }
    const rough = (this.high - this.low) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= rough);
    const found = [];
    for (let i = Math.ceil(this.low / step - 1e-9); i * step <= this.high + step * 1e-9; i += 1) found.push(i * step);
    return found;
  }
}

/* A number for people: three digits, and none that says nothing. */
function short(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return ABSENT;
  if (size < 1e-9) return "0";
  if (size < 0.001 || size >= 1e7) return value.toExponential(1).replace(".0", "").replaceAll("-", MINUS).replace("+", "");
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 4 }).replace("-", MINUS);
}

/* A canvas of a size in CSS pixels, cleared, in the resolution of the screen. */
function prepared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  return pen;
}

/* The outline of a marker, as the figures draw it. */
function marker(pen, kind, x, y, r) {
  pen.beginPath();
  if (kind === "s") pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
  else if (kind === "^" || kind === "v") {
    const up = kind === "^" ? 1 : -1;
    pen.moveTo(x, y - up * 1.2 * r);
    pen.lineTo(x + 1.1 * r, y + up * 0.8 * r);
    pen.lineTo(x - 1.1 * r, y + up * 0.8 * r);
    pen.closePath();
  } else if (kind === "D") {
    pen.moveTo(x, y - 1.25 * r);
    pen.lineTo(x + 1.25 * r, y);
    pen.lineTo(x, y + 1.25 * r);
    pen.lineTo(x - 1.25 * r, y);
    pen.closePath();
  } else pen.arc(x, y, r, 0, 2 * Math.PI);
}

/* Colour and marker of a word, as the page's data says; gray where there is none. */
function look(store, column, code) {
  return store.data.looks.find(({ name }) => name === column?.words?.[code]) ?? { colour: "#9a9a9a", marker: "o" };
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  });
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/* A small picture of a marker in its colour, for legends. */
function swatch({ colour, marker: kind }) {
  const paths = { o: "M6 1.5a4.5 4.5 0 1 0 .01 0Z", "^": "M6 1 11 10.5H1Z", v: "M6 11 11 1.5H1Z", s: "M2 2H10V10H2Z", D: "M6 .5 11.5 6 6 11.5.5 6Z" };
  const svg = shape("svg", { viewBox: "0 0 12 12", class: "swatch", "aria-hidden": "true" });
  svg.append(shape("path", { d: paths[kind], fill: colour }));
  return svg;
}
