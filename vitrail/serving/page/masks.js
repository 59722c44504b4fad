/** @file The masks of objects on one canvas: a fill and an outline in the colour of the class, small objects over large ones. */

import { make } from "./dom.js";
import { stainOf } from "./painter.js";
import { covers, decode, erode, sample } from "./rle.js";

const MOST = 2048, LEAST = 640; // pixels of the longer side of the canvas
const OUTLINE = 1 / 480; // width of an outline, as a share of the longer side
const PLAIN = { line: 1, fill: 0.4 }, LIT = { line: 1, fill: 0.6 }, DIM = { line: 0.35, fill: 0.1 }; // opacities

/** @typedef {import("./objects.js").Found} Found */

export class Masks {
  /** @type {Map<Found, {whole: number[], inner: number[]}>} masks, and what is left of them within the outlines */
  #runs = new Map();

  /**
   * Decodes the masks of a reply, once.
   * @param {{width: number, height: number, objects: Found[]}} prediction
   */
  constructor({ width, height, objects }) {
    const longer = Math.max(width, height), step = Math.ceil(longer / MOST);
    this.columns = Math.ceil(width / step);
    this.rows = Math.ceil(height / step);
    this.zoom = Math.max(1, Math.floor(LEAST / longer));
    for (const found of objects) {
      if (!found.mask) continue;
      const whole = sample(decode(found.mask.counts), height, step);
      this.#runs.set(found, { whole, inner: erode(whole, this.rows, Math.ceil((longer / step) * OUTLINE)) });
    }
    this.canvas = make("canvas", { class: "tint", "aria-hidden": "true", width: this.columns * this.zoom, height: this.rows * this.zoom });
  }

  /**
   * Draws the masks.
   * @param {Found[]} objects the large ones first
   * @param {{colours: Record<string, string>, lit: Set<Found>, filled: boolean}} style
   */
  paint(objects, { colours, lit, filled }) {
    // a row of the image is a column of the masks, so that each run is one stretch of memory
    const image = new ImageData(this.rows, this.columns), pixels = new Uint32Array(image.data.buffer);
    for (const found of [...objects.filter((each) => !lit.has(each)), ...lit]) {
      const runs = this.#runs.get(found), { line, fill } = !lit.size ? PLAIN : lit.has(found) ? LIT : DIM;
      if (!runs) continue;
      cover(pixels, runs.whole, stainOf(colours[found.label], line));
      cover(pixels, runs.inner, filled ? stainOf(colours[found.label], fill) : 0);
    }
    const turned = make("canvas", { width: this.rows, height: this.columns });
    turned.getContext("2d", { willReadFrequently: true })?.putImageData(image, 0, 0);
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.setTransform(0, this.zoom, this.zoom, 0, 0, 0); // swaps the axes
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, this.rows, this.columns);
    context.drawImage(turned, 0, 0);
  }

  /**
   * Returns the first of the objects whose mask covers a position.
   * @param {Found[]} objects
   * @param {{x: number, y: number}} spot relative position in the picture, from 0 to 1
   */
  find(objects, { x, y }) {
    const place = Math.floor(x * this.columns) * this.rows + Math.floor(y * this.rows);
    return objects.find((found) => covers(this.#runs.get(found)?.whole ?? [], place));
  }
}

function cover(pixels, edges, stain) {
  for (let at = 0; at < edges.length; at += 2) pixels.fill(stain, edges[at], edges[at + 1]);
}
