/** @file The classes of a segmenter: a tint over the picture, and a legend whose entries are switches. */

import { make } from "./dom.js";
import { percent, whole } from "./numbers.js";
import { stainOf } from "./painter.js";
import { Switches } from "./switches.js";

const SIDE = 1024; // maximum pixels of the longer side of a map

export class Regions {
  /** @type {{width: number, height: number, data: Uint8Array} | null} the index of the class of every pixel */
  #map = null;
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
   * @param {{classes: {label: string, share: number}[], map: {png: string}}} prediction
   * @param {import("./slot.js").View} view
   */
  async show(prediction, view) {
    if (this.#decoded !== prediction) {
      this.#decoded = prediction;
      const map = await this.#decode(prediction.map.png);
      if (this.#decoded !== prediction) return; // another picture came meanwhile
      this.#map = map;
    }
    const { classes } = prediction;
    this.title.textContent = classes.length === 1 ? "1 class" : `${whole(classes.length)} classes`;
    this.lead.textContent = "by their share of the pixels";
    this.switches.show(classes.map(({ label, share }) => ({ label, colour: this.colours[label], number: percent(share) })), view.hidden);
    if (!this.title.isConnected) this.element.replaceChildren(this.title, this.lead, this.switches.element);
    this.#paint(view);
    this.words = `${classes.slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", ")}.`;
    this.stage.describe(this.words, view);
  }

  /** Decodes a PNG with a palette to the indices of classes, which are found by their colours. */
  async #decode(png) {
    const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }), { colorSpaceConversion: "none" });
    const { width, height } = bitmap, context = contextOf(make("canvas", { width, height }));
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    const pixels = context.getImageData(0, 0, width, height).data, data = new Uint8Array(width * height);
    const numbers = new Map(this.names.map((name, at) => [parseInt(this.colours[name].slice(1), 16), at]));
    for (let at = 0; at < data.length; at++) {
      data[at] = numbers.get((pixels[at * 4] << 16) | (pixels[at * 4 + 1] << 8) | pixels[at * 4 + 2]) ?? 255;
    }
    return { width, height, data };
  }

  #paint({ hidden, tint, method }) {
    if (!this.#map) return;
    const { width, height, data } = this.#map, image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const stains = new Uint32Array(256);
    this.names.forEach((name, at) => { stains[at] = hidden.has(name) ? 0 : stainOf(this.colours[name], tint); });
    for (let at = 0; at < data.length; at++) pixels[at] = stains[data[at]];
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
    this.#read(this.names[map.data[row * map.width + column]] ?? null);
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

/** @param {HTMLCanvasElement} canvas */
const contextOf = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
