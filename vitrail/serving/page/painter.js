/**
 * @file Draws a map on a picture, either as light (high values are bright) or as a colour map.
 *
 * The light mode is that of `vitrail explain`, so the page and the command line produce the same picture.
 */

const DIM = 0.22, FADED = 0.35; // remaining brightness and saturation of the picture at level 0
const GLOW = 0.5, TINT = 0.3; // amount of amber at level 1: added to dark pixels, mixed into bright ones
const AMBER = [255, 176, 46], FRAME = [233, 230, 223];
const BRIGHT = 0.97; // quantile of the positive values that is drawn at level 1
const UNSEEN = 0.15; // remaining brightness outside of the model's input
// initial strengths, at which the picture is still visible; at full strength it equals that of `vitrail explain`
export const STRENGTHS = { light: 0.7, colours: 0.55 };
const LUMA = [0.299, 0.587, 0.114]; // ITU-R 601

/**
 * @typedef {object} Map one value per cell
 * @property {number} rows
 * @property {number} columns
 * @property {[number, number]} reach height and width relative to the box
 * @property {ArrayLike<number>} values row by row
 *
 * @typedef {object} Scene
 * @property {ImageData} picture
 * @property {[number, number, number, number]} box top, left, bottom, right of the model's input, in pixels of the picture
 *
 * @typedef {"light" | "colours"} Manner
 */

/**
 * Returns the values of a map that are drawn at level 0 and at level 1.
 * @param {ArrayLike<number>} values
 * @returns {[number, number]}
 */
export function rangeOf(values) {
  const finite = Array.from(values).filter(Number.isFinite);
  const counting = finite.filter((value) => value > 0).sort((a, b) => a - b);
  if (!counting.length) return [0, 1];
  const low = Math.max(finite.reduce((a, b) => Math.min(a, b)), 0);
  const place = (counting.length - 1) * BRIGHT, below = Math.floor(place);
  const next = counting[Math.min(below + 1, counting.length - 1)];
  const high = counting[below] + (next - counting[below]) * (place - below);
  return high > low ? [low, high] : [0, high];
}

/**
 * Reads the colour map from the page's style and interpolates it to 256 levels.
 * @returns {Uint8ClampedArray} (256 * 3)
 */
export function readScale() {
  const stops = getComputedStyle(document.documentElement).getPropertyValue("--scale").trim().split(/\s+/)
    .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const table = new Uint8ClampedArray(256 * 3);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      const [from, to] = [stops[below][channel], stops[below + 1][channel]];
      table[level * 3 + channel] = from + (to - from) * (place - below);
    }
  }
  return table;
}

/**
 * Returns a colour as a pixel of an image, seen as 32 bits: ABGR, little-endian.
 * @param {string} hex
 * @param {number} opacity
 */
export function stainOf(hex, opacity) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return ((Math.round(opacity * 255) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * Computes linear interpolation along one axis, between cell centres: the lower cell and the weight of the next cell.
 * @param {number} start first pixel of the map
 * @param {number} stop the one after its last
 * @param {number} pixels
 * @param {number} cells
 */
function enlarging(start, stop, pixels, cells) {
  const cell = new Int32Array(pixels), share = new Float32Array(pixels);
  for (let pixel = 0; pixel < pixels; pixel++) {
    const place = Math.min(Math.max(((pixel + 0.5 - start) * cells) / (stop - start) - 0.5, 0), cells - 1);
    cell[pixel] = Math.min(Math.floor(place), Math.max(cells - 2, 0));
    share[pixel] = place - cell[pixel];
  }
  return { cell, share };
}

/**
 * Scales a map to levels in [0, 1].
 * @param {Map} map
 * @param {[number, number]} range
 */
function levelsOf(map, [low, high]) {
  return Float32Array.from(map.values, (value) =>
    Number.isFinite(value) ? Math.min(Math.max((value - low) / (high - low || 1), 0), 1) : 0);
}

/**
 * Draws a map on a picture.
 * @param {Scene} scene
 * @param {Map} map
 * @param {{manner: Manner, opacity: number, range: [number, number], scale: Uint8ClampedArray}} style
 * @returns {ImageData}
 */
export function paint(scene, map, { manner, opacity, range, scale }) {
  const { width, height, data: source } = scene.picture;
  const [top, left, bottom, right] = scene.box;
  const result = new ImageData(width, height), target = result.data;
  const down = enlarging(top, top + map.reach[0] * (bottom - top), height, map.rows);
  const across = enlarging(left, left + map.reach[1] * (right - left), width, map.columns);
  const veil = opacity * opacity; // the outside darkens more slowly than the inside
  const levels = levelsOf(map, range), row = new Float32Array(map.columns + 1), pixel = new Float32Array(3);
  const stain = manner === "colours" ? (light) => colour(pixel, light, scale) : (light, grey) => lit(pixel, light, grey);
  for (let y = 0; y < height; y++) {
    const first = down.cell[y] * map.columns, next = map.rows > 1 ? first + map.columns : first;
    for (let x = 0; x < map.columns; x++) row[x] = levels[first + x] + (levels[next + x] - levels[first + x]) * down.share[y];
    row[map.columns] = row[map.columns - 1];
    const inside = y + 0.5 > top && y + 0.5 < bottom;
    for (let x = 0, at = y * width * 4; x < width; x++, at += 4) {
      for (let c = 0; c < 3; c++) pixel[c] = source[at + c];
      const grey = LUMA[0] * pixel[0] + LUMA[1] * pixel[1] + LUMA[2] * pixel[2];
      const seen = inside && x + 0.5 > left && x + 0.5 < right, strength = seen ? opacity : veil;
      if (seen) {
        const cell = across.cell[x];
        stain(row[cell] + (row[cell + 1] - row[cell]) * across.share[x], grey);
      } else {
        pixel.fill(grey * UNSEEN);
      }
      for (let c = 0; c < 3; c++) target[at + c] = source[at + c] + (pixel[c] - source[at + c]) * strength;
      target[at + 3] = 255;
    }
  }
  return result;
}

/** The light mode: pixels at low levels are darkened and desaturated, dark pixels at high levels are brightened. */
function lit(pixel, light, grey) {
  const tint = TINT * light * light;
  for (let c = 0; c < 3; c++) {
    const seen = grey + (pixel[c] - grey) * (FADED + (1 - FADED) * light);
    let value = seen * (DIM + (1 - DIM) * light);
    value += AMBER[c] * light * GLOW * (1 - value / 255);
    pixel[c] = value * (1 - tint) + AMBER[c] * tint;
  }
}

function colour(pixel, light, scale) {
  const at = Math.round(light * 255) * 3;
  for (let c = 0; c < 3; c++) pixel[c] = scale[at + c];
}

/**
 * Draws a thin frame around the model's input, if that is not the whole picture.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
export function frame(context, scene) {
  const { width, height } = scene.picture, [top, left, bottom, right] = scene.box;
  if (top <= 0.5 && left <= 0.5 && bottom >= height - 0.5 && right >= width - 0.5) return;
  context.strokeStyle = `rgb(${FRAME.join(" ")})`;
  context.lineWidth = Math.max(1, Math.round(Math.min(width, height) / 240));
  context.strokeRect(left, top, right - left, bottom - top);
}

/**
 * Draws the legend: all levels from left to right, on middle grey in light mode.
 * @param {HTMLCanvasElement} canvas
 * @param {{manner: Manner, opacity: number, scale: Uint8ClampedArray}} style
 */
export function paintLegend(canvas, style) {
  const width = 256, picture = new ImageData(width, 1);
  picture.data.fill(150);
  Object.assign(canvas, { width, height: 1 });
  /** @type {Map} */
  const map = { rows: 1, columns: width, reach: [1, 1], values: Float32Array.from({ length: width }, (_, x) => x) };
  const painted = paint({ picture, box: [0, 0, 1, width] }, map, { ...style, range: [0, width - 1] });
  canvas.getContext("2d")?.putImageData(painted, 0, 0);
}
