/** @file A picture with a map on it: selection of patches by pointer and keys, caption and legend. */

import { make } from "./dom.js";
import { frame, paint, paintLegend } from "./painter.js";
import { cellAt, spotOf } from "./picture.js";

/**
 * @typedef {import("./picture.js").Cell} Cell
 * @typedef {import("./picture.js").Spot} Spot
 * @typedef {import("./painter.js").Scene} Scene
 * @typedef {import("./painter.js").Map} Map
 */

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Stage {
  /** @type {Scene | null} */
  #scene = null;
  /** @type {Map | null} the grid of the shown layer */
  #map = null;
  /** @type {Cell | null} */
  #query = null;
  /** @type {Cell | null} under the pointer */
  #under = null;
  #pickable = false;
  /** @type {(value: number) => string} */
  #words = String;

  /** @param {(spot: Spot | null) => void} onPick called with the selected query patch; null for the default query */
  constructor(onPick) {
    this.onPick = onPick;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.hover = make("div", { class: "cell hover", hidden: true });
    this.asking = make("div", { class: "cell asking", hidden: true });
    this.layer = make("div", { class: "layer" }); // what the model found, above the picture
    this.pane = make("div", { class: "pane", tabindex: 0, role: "img", "aria-label": "The image" },
      this.canvas, this.layer, this.hover, this.asking);
    this.says = make("p", { class: "says" });
    this.reading = make("p", { class: "reading" });
    this.legend = make("div", { class: "scale", hidden: true });
    this.element = make("figure", { class: "stage" }, this.pane,
      make("figcaption", {}, make("div", {}, this.says, this.reading), this.legend));
    this.pane.addEventListener("pointermove", (event) => this.#point(event));
    this.pane.addEventListener("pointerleave", () => this.#read(null));
    this.pane.addEventListener("click", (event) => this.#click(event));
    this.pane.addEventListener("keydown", (event) => this.#key(event));
  }

  /**
   * Shows a scene without a map.
   * @param {Scene} scene
   * @param {string} [caption]
   */
  showPlain(scene, caption = "") {
    this.#size(scene);
    this.canvas.getContext("2d")?.putImageData(scene.picture, 0, 0);
    this.#bare(caption);
  }

  /**
   * Shows the scene dimmed and without its map until the next map.
   * @param {string} caption what is being computed
   */
  wait(caption) {
    if (this.#scene) this.canvas.getContext("2d")?.putImageData(this.#scene.picture, 0, 0);
    this.#bare(caption);
    this.pane.classList.add("waiting");
  }

  /**
   * Describes what lies above a picture without a map.
   * @param {string} words
   * @param {{method: string | null}} view
   */
  describe(words, { method }) {
    if (method) return;
    this.pane.setAttribute("aria-label", words);
    this.says.textContent = words;
  }

  /** Removes picture and map. */
  clear() {
    this.canvas.getContext("2d")?.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.#scene = null;
    this.#bare("");
  }

  get empty() {
    return !this.#scene;
  }

  /** Removes map, legend and selection. */
  #bare(caption) {
    this.#map = null;
    this.#pickable = false;
    this.pane.classList.remove("waiting", "pickable");
    this.pane.setAttribute("role", "img");
    this.pane.setAttribute("aria-label", caption || "The image");
    this.says.textContent = caption;
    this.legend.hidden = true;
    this.mark(null);
    this.#read(null);
  }

  /**
   * Shows a scene with a map.
   * @param {Scene} scene
   * @param {Map} map
   * @param {{manner: import("./painter.js").Manner, opacity: number, range: [number, number], scale: Uint8ClampedArray,
   *   pickable: boolean, caption: string, words: (value: number) => string}} options
   */
  show(scene, map, options) {
    this.#size(scene);
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.putImageData(paint(scene, map, options), 0, 0);
    frame(context, scene);
    if (this.#map?.rows !== map.rows || this.#map.columns !== map.columns) this.#under = null;
    this.#map = map;
    this.#words = options.words;
    this.#pickable = options.pickable;
    this.pane.classList.remove("waiting");
    this.pane.classList.toggle("pickable", options.pickable);
    // with selectable patches it handles keys; otherwise it is an image
    this.pane.setAttribute("role", options.pickable ? "application" : "img");
    this.pane.setAttribute("aria-label", options.pickable
      ? `${options.caption} Arrow keys select a query patch, Escape clears the selection.` : options.caption);
    this.says.textContent = options.caption;
    this.#read(this.#under);
    this.#showLegend(options);
  }

  /**
   * Outlines the query patch.
   * @param {Cell | null} cell
   */
  mark(cell) {
    this.#query = cell;
    this.#outline(this.asking, cell);
  }

  /**
   * Returns the displayed picture as a PNG.
   * @param {{drawOn: (context: CanvasRenderingContext2D) => void}} answer drawn on it
   */
  blob(answer) {
    const { width, height } = this.canvas, copy = make("canvas", { width, height });
    const context = /** @type {CanvasRenderingContext2D} */ (copy.getContext("2d"));
    context.drawImage(this.canvas, 0, 0);
    answer.drawOn(context);
    return new Promise((resolve) => copy.toBlob(resolve, "image/png"));
  }

  #size(scene) {
    const { width, height } = scene.picture;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.pane.style.setProperty("--ratio", String(width / height));
    this.#scene = scene;
  }

  #showLegend(options) {
    const bar = make("canvas", { class: "bar", "aria-hidden": "true" });
    paintLegend(bar, options);
    const [low, high] = options.range.map(options.words);
    this.legend.replaceChildren(make("span", {}, low), bar, make("span", {}, `≥ ${high}`));
    this.legend.hidden = false;
  }

  /** @param {MouseEvent} event */
  #cellUnder(event) {
    if (!this.#scene || !this.#map) return null;
    const bounds = this.canvas.getBoundingClientRect(), { picture, box: [top, left, bottom, right] } = this.#scene;
    const x = ((event.clientX - bounds.left) / bounds.width) * picture.width;
    const y = ((event.clientY - bounds.top) / bounds.height) * picture.height;
    const spot = { x: (x - left) / (right - left), y: (y - top) / (bottom - top) };
    const inside = spot.x >= 0 && spot.x < 1 && spot.y >= 0 && spot.y < 1;
    return inside ? cellAt(this.#map, spot) : null;
  }

  #point(event) {
    this.#read(this.#cellUnder(event));
  }

  /** @param {Cell | null} cell */
  #read(cell) {
    this.#under = cell;
    this.#outline(this.hover, cell);
    const value = cell && this.#map?.values[cell.row * this.#map.columns + cell.column];
    this.reading.textContent = cell && value !== undefined ? `row ${cell.row}, column ${cell.column}: ${this.#words(value)}` : "";
  }

  #click(event) {
    const cell = this.#cellUnder(event);
    if (!cell || !this.#map || !this.#pickable) return;
    const same = this.#query && cell.row === this.#query.row && cell.column === this.#query.column;
    this.#pick(same ? null : cell);
  }

  /** Outlines the patch before the reply arrives, so that further keys continue from it. */
  #pick(cell) {
    this.mark(cell);
    this.onPick(cell && this.#map ? spotOf(this.#map, cell) : null);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (!this.#map || !this.#pickable || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return this.#pick(null);
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const { rows, columns } = this.#map;
    const from = this.#query ?? { row: Math.floor(rows / 2) - step[0], column: Math.floor(columns / 2) - step[1] };
    const within = (at, length) => Math.min(Math.max(at, 0), length - 1);
    this.#pick({ row: within(from.row + step[0], rows), column: within(from.column + step[1], columns) });
  }

  /** Positions the outline of a cell on the picture, clipped to the model's input. */
  #outline(element, cell) {
    element.hidden = !cell || !this.#map || !this.#scene;
    if (!cell || !this.#map || !this.#scene) return;
    const { picture, box: [top, left, bottom, right] } = this.#scene, { rows, columns, reach } = this.#map;
    const high = (reach[0] * (bottom - top)) / rows, wide = (reach[1] * (right - left)) / columns;
    const y = top + cell.row * high, x = left + cell.column * wide;
    const placed = {
      top: y / picture.height, left: x / picture.width,
      height: (Math.min(y + high, bottom) - y) / picture.height, width: (Math.min(x + wide, right) - x) / picture.width,
    };
    for (const [side, share] of Object.entries(placed)) element.style.setProperty(side, `${share * 100}%`);
  }
}
