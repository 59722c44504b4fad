/** @file The classes of a segmenter, or the segments of a panoptic one: a tint over the picture, and a legend of switches. */

import { make } from "./dom.js";
import { percent, whole } from "./numbers.js";
import { stainOf } from "./painter.js";
import { Switches } from "./switches.js";

const SIDE = 1024; // maximum pixels of the longer side of a map

/**
 * @typedef {object} RegionMap the number of the region of every pixel, and the class and the name of each number; none without
 * @property {number} width
 * @property {number} height
 * @property {Uint16Array} data
 * @property {(string | undefined)[]} labels
 * @property {(string | undefined)[]} names
 */

export class Regions {
  /** @type {RegionMap | null} */
  #map = null;
  hasEdges = false;
  /** @type {any} prediction whose map is decoded */
  #decoded = null;

  /**
   * @param {import("./stage.js").Stage} stage
   * @param {Record<string, string>} colours by class, in the order of the model's classes
   * @param {{onSwitch: (label: string) => void}} on callbacks
   */
  constructor(stage, colours, { onSwitch }) {
    Object.assign(this, { stage, colours, names: Object.keys(colours) });
    this.element = make("div", { class: "answer", role: "group", "aria-label": "Classes of the picture" });
    this.title = make("h2", { class: "best" });
    this.lead = make("p", { class: "lead" });
    this.switches = new Switches(onSwitch);
    this.canvas = make("canvas", { class: "tint", "aria-hidden": "true" });
    this.words = "";
    stage.pane.addEventListener("pointermove", (event) => this.#point(event));
    stage.pane.addEventListener("pointerleave", () => this.#read(null));
  }

  /** Returns the parameters of a request. */
  query() {
    return `side=${SIDE}`;
  }

  wait() {
    this.element.replaceChildren(make("p", { class: "lead" }, "Computing the classes of all pixels …"));
    this.stage.layer.replaceChildren();
  }

  clear() {
    this.#map = this.#decoded = null;
    this.element.replaceChildren();
    this.stage.layer.replaceChildren();
  }

  /**
   * @param {any} prediction
   * @param {import("./slot.js").View} view
   */
  async show(prediction, view) {
    if (this.#decoded !== prediction) {
      this.#decoded = prediction;
      const map = await this.decode(prediction);
      if (this.#decoded !== prediction) return; // another picture came meanwhile
      this.#map = map;
    }
    const { title, classes } = this.list(prediction);
    this.title.textContent = title;
    this.lead.textContent = "by their share of the pixels";
    this.switches.show(classes.map(({ label, share }) => ({ label, colour: this.colours[label], number: percent(share) })), view.hidden);
    if (!this.title.isConnected) this.element.replaceChildren(this.title, this.lead, this.switches.element);
    this.#paint(view);
    this.words = `${classes.slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", ")}.`;
    this.stage.describe(this.words, view);
  }

  /** Returns the title, and the classes with their share of the pixels. */
  list({ classes }) {
    return { title: classes.length === 1 ? "1 class" : `${whole(classes.length)} classes`, classes };
  }

  /**
   * Decodes a PNG with a palette to the indices of classes, which are found by their colours.
   * @returns {Promise<RegionMap>}
   */
  async decode({ map }) {
    const numbers = new Map(this.names.map((name, at) => [parseInt(this.colours[name].slice(1), 16), at]));
    return { ...(await readPixels(map.png, (colour) => numbers.get(colour) ?? 255)), labels: this.names, names: this.names };
  }

  #paint({ hidden, tint, method }) {
    if (!this.#map) return;
    const { width, height, data, labels } = this.#map, image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const paint = (strength) => labels.map((label) => (!label || hidden.has(label) ? 0 : stainOf(this.colours[label], strength)));
    const stains = paint(tint), edges = this.hasEdges ? paint(1) : stains;
    for (let at = 0; at < data.length; at++) {
      const number = data[at], right = (at + 1) % width ? data[at + 1] : number;
      const isEdge = number !== right || number !== (data[at + width] ?? number);
      pixels[at] = (isEdge ? edges : stains)[number] ?? 0;
    }
    Object.assign(this.canvas, { width, height });
    contextOf(this.canvas).putImageData(image, 0, 0);
    this.canvas.hidden = Boolean(method); // a map of attention has the picture to itself
    if (!this.canvas.isConnected) this.stage.layer.replaceChildren(this.canvas);
  }

  /** @param {PointerEvent} event */
  #point(event) {
    if (!this.#map || !this.canvas.isConnected || this.canvas.hidden) return;
    const { left, top, width, height } = this.canvas.getBoundingClientRect(), map = this.#map;
    const column = Math.floor(((event.clientX - left) / width) * map.width), row = Math.floor(((event.clientY - top) / height) * map.height);
    this.#read(map.names[map.data[row * map.width + column]] ?? null);
  }

  #read(name) {
    if (!this.canvas.hidden) this.stage.reading.textContent = name ?? "";
  }

  /**
   * Draws the tint on a picture that is saved.
   * @param {CanvasRenderingContext2D} context
   */
  drawOn(context) {
    if (!this.canvas.hidden && this.#map) context.drawImage(this.canvas, 0, 0, context.canvas.width, context.canvas.height);
  }
}

/** The segments of a picture, each with an edge; those of a class are switched together. */
export class Segments extends Regions {
  hasEdges = true;

  query() {
    return "";
  }

  list({ segments, width, height }) {
    const shares = new Map();
    for (const { label, area } of segments) shares.set(label, (shares.get(label) ?? 0) + area / (width * height));
    const classes = [...shares].map(([label, share]) => ({ label, share })).sort((one, other) => other.share - one.share);
    return { title: segments.length === 1 ? "1 segment" : `${whole(segments.length)} segments`, classes };
  }

  /**
   * Decodes a PNG whose colours are the ids of segments.
   * @returns {Promise<RegionMap>}
   */
  async decode({ map, segments }) {
    const labels = [undefined], names = [undefined];
    for (const { id, label, score } of segments) [labels[id], names[id]] = [label, `${label} ${score.toFixed(2)}`];
    const id = (colour) => (colour >> 16) | (colour & 0xff00) | ((colour & 0xff) << 16);
    return { ...(await readPixels(map.png, id)), labels, names };
  }
}

/**
 * @param {string} png in base64
 * @param {(colour: number) => number} numberOf from red, green and blue, 0xrrggbb
 */
async function readPixels(png, numberOf) {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }), { colorSpaceConversion: "none" });
  const { width, height } = bitmap, context = contextOf(make("canvas", { width, height }));
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const pixels = context.getImageData(0, 0, width, height).data, data = new Uint16Array(width * height);
  for (let at = 0; at < data.length; at++) data[at] = numberOf((pixels[at * 4] << 16) | (pixels[at * 4 + 1] << 8) | pixels[at * 4 + 2]);
  return { width, height, data };
}

/** @param {HTMLCanvasElement} canvas */
const contextOf = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
