/* What the reader looks at, and how the address says it: only what differs from the beginning. */

const PREFIX = "#explore?";

function beginning(store) {
  const { x, y } = store.data.first;
  return {
    at: store.last, matrix: x, x, y, scale: "fixed", time: "order", trails: false,
    compare: false, from: 0, to: store.last, beyond: false, head: null,
    brush: { layers: "", types: [], categories: [], ranges: [], keep: true, hold: null },
  };
}

function addressOf(state, store) {
  const first = beginning(store), found = new URLSearchParams();
  ["at", "matrix", "x", "y", "scale", "time"].forEach((name) => { if (state[name] !== first[name]) found.set(name, state[name]); });
  if (state.trails) found.set("trails", 1);
  if (state.compare) found.set("compare", `${state.from}-${state.to}`);
  if (state.compare && state.beyond) found.set("beyond", 1);
  if (state.head) found.set("head", headName(state.head));
  const { layers, types, categories, ranges, keep, hold } = state.brush;
  if (layers) found.set("layers", layers);
  if (types.length) found.set("types", types.join(" "));
  if (categories.length) found.set("categories", categories.join(" "));
  ranges.forEach(([name, low, high]) => found.append("range", `${name} ${low} ${high}`));
  if (isBrushed(state.brush)) found.set("hold", keep ? hold : "no");
  const text = found.toString();
  return text ? PREFIX + text : "";
}

/* The state that an address names; what it does not name, or what is not there, is as at the beginning. */
function stateOf(address, store) {
  const state = beginning(store);
  if (!address.startsWith(PREFIX)) return state;
  const found = new URLSearchParams(address.slice(PREFIX.length));
  const checkpoint = (text) => (/^\d+$/.test(text ?? "") && Number(text) <= store.last ? Number(text) : null);
  const numeric = (name) => store.column(name) && !store.column(name).words;
  state.at = checkpoint(found.get("at")) ?? state.at;
  if (store.column(found.get("matrix"))) state.matrix = found.get("matrix");
  ["x", "y"].forEach((name) => { if (numeric(found.get(name))) state[name] = found.get(name); });
  if (found.get("scale") === "each") state.scale = "each";
  if (["step", "log"].includes(found.get("time"))) state.time = found.get("time");
  state.trails = found.get("trails") === "1";
  const pair = (found.get("compare") ?? "").split("-").map(checkpoint);
  if (pair.length === 2 && pair.every((one) => one !== null)) [state.compare, state.from, state.to] = [true, ...pair];
  state.beyond = found.get("beyond") === "1";
  const head = /^L(\d+)H(\d+)$/.exec(found.get("head") ?? "");
  if (head && store.shapes.some(({ index }) => index.has(`${head[1]}.${head[2]}`))) state.head = `${head[1]}.${head[2]}`;
  const words = (name) => (found.get(name) ?? "").split(" ").filter(Boolean);
  const { brush } = state;
  if (layerSet(found.get("layers") ?? "") !== null) brush.layers = found.get("layers") ?? "";
  brush.types = words("types").filter((name) => TYPES.some(([own]) => own === name));
  brush.categories = words("categories").filter((name) => store.category?.words.includes(name));
  brush.ranges = found.getAll("range").map((text) => text.split(" ")).filter(([name, low, high]) => numeric(name) && !Number.isNaN(Number(low)) && !Number.isNaN(Number(high))).map(([name, low, high]) => [name, Number(low), Number(high)]);
  brush.keep = found.get("hold") !== "no";
  brush.hold = brush.keep && isBrushed(brush) ? checkpoint(found.get("hold")) ?? (state.compare ? state.to : state.at) : null;
  return state;
}
