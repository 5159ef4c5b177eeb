/* The numbers of the page: packed arrays (packing.py) and what is known of them. */

const MINUS = "−";
const ABSENT = "–";
const WIDTHS = { u8: [1, Uint8Array], i8: [1, Int8Array], i16: [2, Int16Array], u16: [2, Uint16Array], i32: [4, Int32Array], f32: [4, Float32Array] };

/* Bytes of deflated base64 text. */
async function inflate(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* An array as it was before packing: bytes of a number brought together again, differences added up. */
function unpack(bytes, { type, start, count, stride }) {
  const [size, Numbers] = WIDTHS[type];
  const own = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane += 1) {
    const from = start + plane * count;
    for (let i = 0; i < count; i += 1) own[i * size + plane] = bytes[from + i];
  }
  const numbers = new Numbers(own.buffer);
  if (stride) for (let i = stride; i < count; i += 1) numbers[i] += numbers[i - stride];
  return numbers;
}

const signed = (text) => text.replace("-", MINUS);
const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);

/* A column of the table of heads: a row is one head at one checkpoint. Arrays are unpacked when they are first asked for. */
class Column {
  constructor(spec, bytes, packing) {
    Object.assign(this, { name: spec.name, label: spec.name, meaning: spec.meaning, words: spec.words ?? null, size: false });
    this.spec = spec;
    this.bytes = bytes;
    this.packing = packing;
    this.arrays = {};
  }

  array(part) {
    this.arrays[part] ??= unpack(this.bytes, this.spec[part]);
    return this.arrays[part];
  }

  get hasErrors() { return "errors" in this.spec; }
  get hasReplicates() { return "replicates" in this.spec && !this.size; }

  /* The number that is shown, or that of a word; NaN where there is none. */
  value(row) {
    const { type, decimals } = this.spec.values;
    const code = this.array("values")[row];
    if (this.words) return code === this.packing.missing_word ? NaN : code;
    if (type === "f32") return Number.isNaN(code) ? NaN : Number(code.toPrecision(this.spec.values.digits));
    if (code === (type === "i16" ? this.packing.missing : this.packing.missing_long)) return NaN;
    const value = code / 10 ** decimals;
    return this.size ? Math.abs(value) : value;
  }

  text(row) { return this.format(this.value(row)); }

  /* A value of this column in words: as many digits as the page carries. */
  format(value) {
    if (Number.isNaN(value)) return ABSENT;
    if (this.words) return this.words[value];
    const { decimals, digits } = this.spec.values;
    if (digits) return signed(String(Number(value.toPrecision(digits))));
    return signed(value.toFixed(decimals).replace(/^-(?=0(\.0+)?$)/, ""));
  }

  /* Mantissa of two digits and exponent of a standard error; null where there is none. */
  errorParts(row) {
    if (!this.hasErrors) return null;
    const code = this.array("errors")[row];
    if (code === 0) return null;
    if (code === this.packing.zero_error) return [0, 0];
    const rest = code - 1;
    return [(rest % this.packing.mantissas) + 10, Math.floor(rest / this.packing.mantissas) - this.packing.exponent];
  }

  error(row) {
    const parts = this.errorParts(row);
    return parts === null ? NaN : Number(`${parts[0]}e${parts[1]}`);
  }

  errorText(row) { return errorText(this.error(row)); }

  /* How each group of documents moves a head; their squares add up to the variance. Null where that is not known. */
  deviations(row, groups) {
    if (!this.hasReplicates || groups < 2) return null;
    const step = this.array("steps")[row];
    if (Number.isNaN(step)) return null;
    const all = this.array("replicates");
    const width = all.length / this.array("steps").length;
    return Array.from({ length: groups }, (_, group) => all[row * width + group] * step);
  }
}

/* An error with two significant digits. */
function errorText(error) {
  if (!Number.isFinite(error)) return "";
  if (error === 0) return "± 0";
  const exponent = Number(error.toExponential(1).split("e")[1]) - 1;
  if (exponent < -7) return `± ${signed(error.toExponential(1))}`;
  return `± ${exponent < 0 ? error.toFixed(-exponent) : Number(error.toPrecision(2))}`;
}

/* Everything that the views look at. */
class Store {
  constructor(data, bytes) {
    Object.assign(this, { data, bytes, noun: data.noun, training: data.training, groups: data.groups, shapes: data.shapes });
    let start = 0;
    this.checkpoints = data.checkpoints.map((one) => {
      const own = { ...one, start, shape: data.shapes[one.shape], shapeNumber: one.shape };
      start += own.shape.layer.length;
      return own;
    });
    data.shapes.forEach((shape) => {
      shape.index = new Map(shape.layer.map((layer, i) => [`${layer}.${shape.head[i]}`, i]));
      shape.heads = Math.max(...shape.head) + 1;
      shape.sizes = new Map();
      shape.layer.forEach((layer) => shape.sizes.set(layer, (shape.sizes.get(layer) ?? 0) + 1));
    });
    this.columns = new Map();
    data.columns.forEach((spec) => {
      this.columns.set(spec.name, new Column(spec, bytes, data.packing));
      if (!data.sizes.includes(spec.name)) return;
      const size = new Column(spec, bytes, data.packing);
      Object.assign(size, { name: `abs_${spec.name}`, label: `|${spec.name}|`, size: true, meaning: `size of ${spec.name}, whatever its sign` });
      this.columns.set(size.name, size);
    });
    this.extents = new Map();
    this.category = this.columns.get(data.first.category) ?? null;
  }

  column(name) { return this.columns.get(name); }
  get numeric() { return [...this.columns.values()].filter((column) => !column.words); }
  get last() { return this.checkpoints.length - 1; }

  /* Row of a head at a checkpoint; -1 where it was not measured. */
  row(at, key) {
    const { shape, start } = this.checkpoints[at];
    const index = shape.index.get(key);
    return index === undefined ? -1 : start + index;
  }

  /* Keys ("layer.head") of the heads of a checkpoint, in the order of its rows. */
  keys(at) { return [...this.checkpoints[at].shape.index.keys()]; }

  /* Checkpoints whose heads are the same as those of this one. */
  alike(at) {
    const own = this.checkpoints[at].shape;
    return this.checkpoints.flatMap(({ shape }, index) => (shape === own || sameHeads(shape, own) ? [index] : []));
  }

  /* Lowest and highest value of a column at checkpoints. */
  extent(column, checkpoints) {
    const asked = `${column.name} ${checkpoints.join()}`;
    if (!this.extents.has(asked)) this.extents.set(asked, this.findExtent(column, checkpoints));
    return this.extents.get(asked);
  }

  findExtent(column, checkpoints) {
    let low = Infinity, high = -Infinity;
    checkpoints.forEach((at) => {
      const { start, shape } = this.checkpoints[at];
      for (let row = start; row < start + shape.layer.length; row += 1) {
        const value = column.value(row);
        if (value < low) low = value;
        if (value > high) high = value;
      }
    });
    return low > high ? [NaN, NaN] : [low, high];
  }
}

function sameHeads(one, other) {
  return one.layers === other.layers && one.index.size === other.index.size && [...one.index.keys()].every((key) => other.index.has(key));
}

function headName(key) {
  const [layer, head] = key.split(".");
  return `L${layer}H${head}`;
}

/* A name that may be of any length, cut in its middle. */
function brief(text, limit = 28) {
  const letters = [...text];
  if (letters.length <= limit) return text;
  const kept = Math.ceil((limit - 1) / 2);
  return `${letters.slice(0, kept).join("")}…${letters.slice(letters.length - (limit - 1 - kept)).join("")}`;
}

/* The difference of a column between two rows, with its error: by groups of documents where both have the same, else
   from the two errors as if they were independent. */
function difference(store, column, [from, to], [rowFrom, rowTo]) {
  const value = column.value(rowTo) - column.value(rowFrom);
  const [a, b] = [store.checkpoints[from], store.checkpoints[to]];
  const paired = a.groups.length > 1 && a.groups.length === b.groups.length && a.groups.every((group, i) => group === b.groups[i]);
  const [before, after] = paired ? [column.deviations(rowFrom, a.groups.length), column.deviations(rowTo, b.groups.length)] : [null, null];
  const reach = Math.max(a.reach, b.reach);
  if (before && after) return { value, error: Math.sqrt(sum(after.map((one, i) => (one - before[i]) ** 2))), paired: true, reach };
  return { value, error: Math.hypot(column.error(rowFrom), column.error(rowTo)), paired: false, reach };
}

/* Mean of a column over rows of one checkpoint, with its error and what that is. */
function meanOf(store, column, at, rows) {
  const known = rows.filter((row) => !Number.isNaN(column.value(row)));
  if (!known.length) return { value: NaN, error: NaN, kind: "" };
  const value = sum(known.map((row) => column.value(row))) / known.length;
  if (column.size) return { value, error: NaN, kind: "size" };
  const groups = store.checkpoints[at].groups.length;
  const moves = known.map((row) => column.deviations(row, groups));
  if (moves.every((one) => one !== null)) {
    const together = Array.from({ length: groups }, (_, group) => sum(moves.map((one) => one[group])) / known.length);
    return { value, error: Math.sqrt(sum(together.map((one) => one ** 2))), kind: "groups" };
  }
  const error = Math.sqrt(sum(known.map((row) => column.error(row) ** 2))) / known.length;
  return { value, error, kind: Number.isNaN(error) ? "" : "apart" };
}
