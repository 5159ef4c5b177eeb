/* Small charts of one head, as SVG. */

const BOX = { width: 340, height: 210, left: 48, right: 10, top: 12, bottom: 32 };

/* Points [[x, y, error]] without missing ones. */
const known = (points) => points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));

/* A chart of `series` ({label, kind, points: [[x, y, error]]}): `place` says where an x lies, `ticks` which are named,
   `bands` ([from, to, name]) what stands behind, `cursor` which x is marked, `rules` which y. */
function chart(title, { xLabel, place, ticks, series, bands = [], cursor = null, rules = [] }) {
  const figure = element("figure", { class: "chart" });
  const points = series.flatMap((one) => one.points);
  if (!points.length) return figure;
  const xs = [...points.map(([x]) => place(x)), ...bands.flatMap(([from, to]) => [from, to])];
  const low = Math.min(...xs), high = Math.max(...xs);
  const within = (error) => (Number.isFinite(error) ? error : 0);
  let bottom = Math.min(...points.map(([, y, e]) => y - within(e))), top = Math.max(...points.map(([, y, e]) => y + within(e)));
  if (bottom === top) [bottom, top] = [bottom - (Math.abs(bottom) || 1) / 10, top + (Math.abs(top) || 1) / 10];
  const room = 0.05 * (top - bottom);
  [bottom, top] = [bottom - room, top + room];
  const across = (at) => BOX.left + (high > low ? (at - low) / (high - low) : 0.5) * (BOX.width - BOX.left - BOX.right);
  const X = (x) => across(place(x));
  const Y = (y) => BOX.height - BOX.bottom - ((y - bottom) / (top - bottom)) * (BOX.height - BOX.top - BOX.bottom);
  const svg = shape("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": title });
  bands.forEach(([from, to, name], number) => {
    const width = across(to) - across(from);
    const band = shape("rect", { class: number % 2 ? "band odd" : "band", x: across(from), y: BOX.top, width, height: BOX.height - BOX.top - BOX.bottom });
    band.append(shape("title", {}, name));
    svg.append(band);
    const fits = Math.floor(width / 5.4) - 1;
    if (fits >= 6 || name.length <= fits) svg.append(shape("text", { class: "phase", x: across(from) + 2, y: BOX.top - 3 }, brief(name, fits)));
  });
  const steps = new Scale([bottom, top]);
  // The scale of a chart is plain: it neither turns nor takes logarithms.
  Object.assign(steps, { low: bottom, high: top, log: false });
  steps.ticks(4).forEach((value) => {
    svg.append(shape("line", { class: "rule", x1: BOX.left, x2: BOX.width - BOX.right, y1: Y(value), y2: Y(value) }));
    svg.append(shape("text", { x: BOX.left - 4, y: Y(value) + 3, "text-anchor": "end" }, short(value)));
  });
  rules.filter((value) => value > bottom && value < top).forEach((value) => svg.append(shape("line", { class: "threshold", x1: BOX.left, x2: BOX.width - BOX.right, y1: Y(value), y2: Y(value) })));
  if (cursor !== null) {
    const line = shape("line", { class: "cursor", y1: BOX.top, y2: BOX.height - BOX.bottom });
    figure.moveCursor = (x) => ["x1", "x2"].forEach((end) => line.setAttribute(end, X(x)));
    figure.moveCursor(cursor);
    svg.append(line);
  }
  let taken = -Infinity;
  ticks.forEach(([x, text], number) => {
    const at = X(x), last = number === ticks.length - 1 && number > 0;
    const half = text.length * 2.8;
    const start = last ? at - 2 * half : number ? at - half : at;
    if (start < taken + 4) return;
    if (last || number === 0) taken = start + 2 * half;
    else {
      const end = X(ticks.at(-1)[0]) - ticks.at(-1)[1].length * 5.6;
      if (at + half > end - 4) return;
      taken = at + half;
    }
    svg.append(shape("text", { x: at, y: BOX.height - BOX.bottom + 13, "text-anchor": last ? "end" : number ? "middle" : "start" }, text));
  });
  svg.append(shape("text", { x: (BOX.left + BOX.width) / 2, y: BOX.height - 4, "text-anchor": "middle" }, xLabel));
  series.forEach(({ kind, points: own, open }) => {
    if (!kind.includes("dots") && !open) svg.append(shape("polyline", { class: kind, points: own.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" ") }));
    if (!kind.includes("dots") && !kind.includes("marked")) return;
    own.forEach(([x, y, e]) => {
      if (Number.isFinite(e)) svg.append(shape("line", { class: kind, x1: X(x), x2: X(x), y1: Y(y - e), y2: Y(y + e) }));
      svg.append(shape("circle", { class: kind, cx: X(x), cy: Y(y), r: own.length > 60 ? 1.3 : 2.2 }));
    });
  });
  const caption = element("figcaption", {}, title);
  if (series.length > 1 || series[0].label) {
    caption.append(": ");
    series.forEach(({ label, kind }, number) => caption.append(number ? ", " : "", element("span", { class: kind }, label)));
  }
  figure.append(svg, caption);
  return figure;
}

/* Ticks at four of the points of curves over logarithms. */
function logTicks(series, shift) {
  const place = (x) => Math.log(x + shift);
  const xs = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  if (!xs.length) return [];
  const [low, high] = [place(xs[0]), place(xs.at(-1))];
  const near = [0, 1, 2, 3].map((part) => low + (part / 3) * (high - low)).map((at) => xs.reduce((best, x) => (Math.abs(place(x) - at) < Math.abs(place(best) - at) ? x : best), xs[0]));
  return [...new Set(near)].map((x) => [x, short(x)]);
}

function curveChart(title, xLabel, shift, series) {
  return chart(title, { xLabel, place: (x) => Math.log(x + shift), ticks: logTicks(series, shift), series });
}
