/** @file SVG charts over the training step: one line per run and column, with the values at the pointer. */

import { draw, make } from "./dom.js";
import { short } from "./numbers.js";

export const COLOURS = ["cobalt", "amber", "emerald", "ruby", "violet"];
const WIDTH = 460, HEIGHT = 236;
const LEFT = 52, RIGHT = 16, TOP = 12, BOTTOM = 46; // margins in SVG units
const FIRST = ["Loss", "Accuracy", "Learning rate"];
const ROUND = 30; // approximate number of averaging windows along a smoothed line

/**
 * @typedef {{label: string, colour: string, dash: boolean, faint: boolean, dots: boolean, smooth: boolean,
 *   points: [number, number][]}} Line
 */

/**
 * Returns a chart for each group of columns of the runs.
 * @param {import("./runs.js").Watched[]} runs
 * @returns {HTMLElement[]}
 */
export function charts(runs) {
  const titles = new Set(runs.flatMap((run) => Object.values(run.columns).map((column) => column.chart)));
  const order = [...FIRST.filter((title) => titles.has(title)), ...[...titles].filter((title) => !FIRST.includes(title))];
  return order.map((title) => [title, linesOf(title, runs)]).filter(([, lines]) => lines.length)
    .map(([title, lines]) => chart(/** @type {string} */ (title), /** @type {Line[]} */ (lines)));
}

/**
 * Returns the legend of all charts. Colours denote the columns of a single run, or the runs if there are several.
 * @param {import("./runs.js").Watched[]} runs
 * @returns {HTMLElement[]}
 */
export function legend(runs) {
  const labels = labelsOf(runs), [first, ...others] = labels;
  if (runs.length === 1) {
    return others.length ? labels.map((label) => key({ ...runs[0], colour: colourOf(runs[0], labels, label) }, label)) : [];
  }
  const kinds = others.length ? [key({ colour: "grey" }, first), key({ colour: "grey", faint: true }, others.join(", "))] : [];
  return [...runs.map((run) => key(run, run.name)), ...(runs.length ? kinds : [])];
}

/** Returns the labels of the columns, training first, without those equal to the title of their chart. */
function labelsOf(runs) {
  const named = runs.flatMap((run) => Object.values(run.columns))
    .filter(({ chart: title, label }) => title.toLowerCase() !== label.toLowerCase());
  const labels = [...new Set(named.map(({ label }) => label))];
  return [...labels.filter((label) => label === "training"), ...labels.filter((label) => label !== "training")];
}

/** Returns the colour of a column of a run. */
function colourOf(run, labels, label) {
  const at = labels.indexOf(label), others = COLOURS.filter((colour) => colour !== run.colour);
  return at > 0 ? others[(at - 1) % others.length] : run.colour;
}

/** @returns {Line[]} */
function linesOf(title, runs) {
  const labels = labelsOf(runs), several = runs.length > 1;
  const columnsOf = (run) => Object.entries(run.columns).filter(([, column]) => column.chart === title);
  return runs.flatMap((run) => columnsOf(run).map(([name, { label }]) => {
    const rows = run.rows.filter((row) => Number.isFinite(row[name])), points = rows.map((row) => [row.step, row[name]]);
    return {
      label: several ? `${run.name}, ${label}` : label, dash: run.dash,
      dots: rows.length <= 40 && rows.every((row) => !("lr" in row)),
      colour: several ? run.colour : colourOf(run, labels, label),
      faint: several && labels.indexOf(label) > 0, smooth: title !== "Learning rate", points,
    };
  })).filter((line) => line.points.length);
}

/**
 * @param {string} title
 * @param {Line[]} lines
 */
function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const steps = points.map(([step]) => step), values = points.map(([, value]) => value);
  const across = axis(least(steps), most(steps), LEFT, WIDTH - RIGHT, 5);
  // from zero, unless that would flatten the lines
  const floor = least(values) >= 0 && (title !== "Loss" || least(values) < most(values) / 2) ? 0 : least(values);
  const up = axis(floor, most(values), HEIGHT - BOTTOM, TOP, 4, true);
  const words = title === "Accuracy" ? (value) => `${Number((value * 100).toPrecision(3))} %` : short;
  const says = `${title} against the step. ${lines.map((line) => spoken(line, words)).join(" ")}`;
  const cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": says },
    ...up.ticks.map((tick) => draw("g", {},
      draw("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: up.at(tick), y2: up.at(tick) }),
      draw("text", { x: LEFT - 7, y: up.at(tick) + 4, "text-anchor": "end" }, words(tick)))),
    ...across.ticks.map((tick) =>
      draw("text", { x: across.at(tick), y: HEIGHT - 27, "text-anchor": "middle" }, short(tick))),
    draw("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "step"),
    ...lines.flatMap((line) => shapes(line, across, up)), cursor);
  const under = make("p", { class: "under", "aria-hidden": "true" });
  svg.addEventListener("pointermove", (event) => point(event, svg, cursor, under, { lines, across, words }));
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); under.textContent = ""; });
  return make("figure", { class: "chart" }, make("h3", {}, title), svg, under);
}

/** Returns the CSS classes of a line. */
const kindOf = (line) => `${line.colour}${line.dash ? " dash" : ""}${line.faint ? " faint" : ""}`;

const key = (line, words) => make("li", {}, make("span", { class: `swatch ${kindOf(line)}`, "aria-hidden": "true" }), words);

const least = (numbers) => numbers.reduce((a, b) => Math.min(a, b), Infinity);
const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);

function spoken({ label, points }, words) {
  const [first, last] = [points[0], points[points.length - 1]];
  return `${label}: from ${words(first[1])} at step ${first[0]} to ${words(last[1])} at step ${last[0]}.`;
}

/** Returns a scale from values to SVG units, with round ticks; `whole` extends it to the outer ticks. */
function axis(low, high, from, to, count, whole = false) {
  const step = round((high - low || Math.abs(high) || 1) / count);
  const start = whole ? Math.floor(low / step + 1e-9) * step : low;
  const end = whole ? Math.ceil(high / step - 1e-9) * step : high;
  const span = end - start || 1, ticks = [];
  for (let tick = Math.ceil(start / step - 1e-9); tick * step <= end + step * 1e-9; tick++) {
    ticks.push(Number((tick * step).toPrecision(12)));
  }
  const at = (value) => from + ((value - start) / span) * (to - from);
  return { ticks, at, back: (place) => start + ((place - from) / (to - from)) * span };
}

/** Rounds up to 1, 2 or 5 times a power of ten. */
function round(wish) {
  const power = 10 ** Math.floor(Math.log10(wish));
  return power * ([1, 2, 5].find((factor) => factor * power >= wish * 0.999) ?? 10);
}

/** Draws a line; a long one faint, with its moving average on top. */
function shapes(line, across, up) {
  const place = ([x, y]) => `${across.at(x).toFixed(1)} ${up.at(y).toFixed(1)}`;
  const path = (points) => `M${points.map(place).join("L")}`;
  const kind = `line ${kindOf(line)}`;
  const rough = line.smooth && line.points.length > 2 * ROUND;
  return [
    draw("path", { class: `${kind}${rough ? " rough" : ""}`, d: path(line.points) }),
    rough && draw("path", { class: kind, d: path(smoothed(line.points)) }),
    ...(line.dots || line.points.length === 1 ? line.points : [])
      .map(([x, y]) => draw("circle", { class: kind, cx: across.at(x), cy: up.at(y), r: 2.4 })),
  ].filter(Boolean);
}

/** Returns the centred moving average; points at both ends without a full window are left out. */
function smoothed(points) {
  const half = Math.ceil(points.length / ROUND / 2), whole = 2 * half + 1;
  const sums = [0];
  for (const [, value] of points) sums.push(sums[sums.length - 1] + value);
  return points.slice(half, -half).map(([step], from) => [step, (sums[from + whole] - sums[from]) / whole]);
}

/** Shows a cursor at the step under the pointer, and the value of each line there. */
function point(event, svg, cursor, under, { lines, across, words }) {
  const bounds = svg.getBoundingClientRect();
  const wanted = across.back(((event.clientX - bounds.left) / bounds.width) * WIDTH);
  const far = ([step]) => Math.abs(step - wanted);
  const nearest = (points) => points.reduce((best, point) => (far(point) < far(best) ? point : best));
  const points = lines.map((line) => ({ line, near: nearest(line.points) }));
  const place = across.at(nearest(points.map(({ near }) => near))[0]);
  for (const side of ["x1", "x2"]) cursor.setAttribute(side, String(place));
  cursor.setAttribute("visibility", "visible");
  under.textContent = points.map(({ line, near }) => `${line.label} ${words(near[1])} at step ${near[0]}`).join(" · ");
}
