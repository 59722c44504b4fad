/** @file The objects of a picture: boxes or masks over it, switches for their classes, and a list by score. */

import { make } from "./dom.js";
import { Masks } from "./masks.js";
import { percent, whole } from "./numbers.js";
import { Switches } from "./switches.js";

export const TASKS = ["detection", "instances"]; // that are answered by objects
export const LEAST = 0.05; // the least threshold of the slider
const NAMED = 20; // boxes with a name on the picture; of more, only the box under the pointer has one
const LINE = 1 / 240, LETTERS = 1 / 36; // of a saved picture, as shares of its mean side
const INK = "#0b0d12"; // of words on the colour of a class
const SHAPES = { masks: "Masks", boxes: "Boxes" };

/**
 * @typedef {{label: string, score: number, box: [number, number, number, number], area?: number,
 *   mask?: {size: [number, number], counts: string}}} Found box: left, top, right, bottom in pixels; area: pixels of the mask
 */

export class Objects {
  /** @type {{width: number, height: number, objects: Found[]} | null} */
  #prediction = null;
  /** @type {Found[]} objects that are shown */
  #shown = [];
  /** @type {Masks | null} of the prediction, null if it has none */
  #masks = null;
  /** @type {Masks | null} the same while they are drawn, null while boxes are */
  #drawn = null;
  #filled = true;
  /** @type {Set<Found>} objects under the pointer or with the focus */
  #lit = new Set();
  /** @type {Found | null} whose mask is under the pointer */
  #under = null;
  /** @type {Map<Found, HTMLElement[]>} the box and the row of each shown object, the large objects first */
  #parts = new Map();

  /**
   * @param {import("./stage.js").Stage} stage
   * @param {Record<string, string>} colours by class
   * @param {{onSwitch: (label: string) => void, onShape: (shape: "masks" | "boxes") => void}} on callbacks
   */
  constructor(stage, colours, { onSwitch, onShape }) {
    Object.assign(this, { stage, colours });
    this.element = make("div", { class: "answer", role: "group", "aria-label": "Objects" });
    this.title = make("h2", { class: "best" });
    this.lead = make("p", { class: "lead" });
    this.switches = new Switches(onSwitch);
    this.list = make("ol", { class: "found", "aria-label": "Objects by score" });
    this.shapes = make("div", { class: "options", role: "group", "aria-label": "Show objects as" },
      ...Object.entries(SHAPES).map(([value, name]) => make("button", { type: "button", value, onclick: () => onShape(value) }, name)));
    for (const event of ["pointermove", "pointerdown"]) stage.layer.addEventListener(event, (moved) => this.#point(moved));
    stage.layer.addEventListener("pointerleave", () => this.#point(null));
  }

  /** Returns the parameters of a request: for all objects that the slider can show. */
  query() {
    return `threshold=${LEAST}`;
  }

  wait() {
    this.element.replaceChildren(make("p", { class: "lead" }, "Searching for objects …"));
    this.stage.layer.replaceChildren();
  }

  clear() {
    this.#prediction = this.#masks = this.#drawn = null;
    this.element.replaceChildren();
    this.stage.layer.replaceChildren();
  }

  /**
   * @param {{width: number, height: number, objects: Found[]}} prediction
   * @param {import("./slot.js").View} view
   */
  show(prediction, view) {
    const certain = prediction.objects.filter(({ score }) => score >= view.threshold);
    const counts = new Map();
    for (const { label } of certain) counts.set(label, (counts.get(label) ?? 0) + 1);
    const labels = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a.localeCompare(b));
    if (this.#prediction !== prediction) {
      this.#prediction = prediction;
      this.#masks = prediction.objects.some(({ mask }) => mask) ? new Masks(prediction) : null;
    }
    this.#drawn = view.shape === "masks" ? this.#masks : null;
    this.#filled = !view.method; // on a map of attention only the outlines are drawn
    this.#shown = certain.filter(({ label }) => !view.hidden.has(label));
    this.title.textContent = countOf(this.#shown.length);
    this.lead.textContent = `with a score of ${Math.round(view.threshold * 100)} % or more`;
    this.switches.show(labels.map((label) => ({ label, colour: this.colours[label], number: whole(counts.get(label)) })), view.hidden);
    this.shapes.hidden = !this.#masks;
    for (const button of this.shapes.children) button.setAttribute("aria-pressed", String(button.getAttribute("value") === view.shape));
    this.#draw();
    if (!this.title.isConnected) this.element.replaceChildren(this.title, this.lead, this.shapes, this.switches.element, this.list);
    const listed = labels.filter((label) => !view.hidden.has(label)).map((label) => `${label} ${counts.get(label)}`).join(", ");
    this.words = `${countOf(this.#shown.length)}${listed ? `: ${listed}` : ""}.`;
    this.stage.describe(this.words, view);
  }

  #draw() {
    this.#lit.clear();
    this.#under = null;
    const parts = this.#shown.map((found, at) => [this.#box(found, this.#shown.length - at), this.#row(found)]);
    this.list.replaceChildren(...parts.map(([, row]) => row));
    // large objects below small ones, which could not be pointed at otherwise
    const sizes = this.#shown.map((found) => (this.#drawn ? found.area ?? areaOf(found) : areaOf(found)));
    const order = parts.map((_, at) => at).sort((a, b) => sizes[b] - sizes[a]);
    this.#parts = new Map(order.map((at) => [this.#shown[at], parts[at]]));
    this.stage.layer.replaceChildren(...(this.#drawn ? [this.#drawn.canvas] : []), ...order.map((at) => parts[at][0]));
    this.stage.layer.classList.toggle("many", parts.length > NAMED);
    this.#paint();
  }

  /** Draws the masks, and dims all objects but those that are lit. */
  #paint() {
    this.stage.layer.classList.toggle("some", this.#lit.size > 0);
    this.#drawn?.paint([...this.#parts.keys()], { colours: this.colours, lit: this.#lit, filled: this.#filled });
  }

  /**
   * @param {Found | null} on to be lit
   * @param {Found | null} off lit until now
   */
  #light(on, off) {
    if (off) this.#lit.delete(off);
    if (on) this.#lit.add(on);
    for (const found of [off, on]) {
      for (const part of (found && this.#parts.get(found)) ?? []) part.classList.toggle("on", found === on);
    }
    this.#paint();
  }

  /**
   * Lights the smallest object whose mask is under the pointer.
   * @param {PointerEvent | null} event
   */
  #point(event) {
    if (!this.#drawn) return;
    const { left, top, width, height } = this.stage.layer.getBoundingClientRect();
    const spot = event && { x: (event.clientX - left) / width, y: (event.clientY - top) / height };
    const under = (spot && this.#drawn.find([...this.#parts.keys()].reverse(), spot)) ?? null;
    if (under === this.#under) return;
    this.#light(under, this.#under);
    this.#under = under;
  }

  /** Lights an object while the pointer is on this part of it, or the focus. */
  #listen(part, found) {
    for (const event of ["pointerenter", "focus"]) part.addEventListener(event, () => this.#light(found, null));
    for (const event of ["pointerleave", "blur"]) part.addEventListener(event, () => this.#light(null, found));
    return part;
  }

  #row(found) {
    const { label, score, area } = found, { width, height } = /** @type {NonNullable<typeof this.#prediction>} */ (this.#prediction);
    return this.#listen(make("li", { class: "object-row", tabindex: 0, style: { "--colour": this.colours[label] } },
      make("span", { class: "square", "aria-hidden": "true" }), make("span", { class: "label" }, label),
      area !== undefined && make("span", { class: "area" }, `${whole(area)} px, ${percent(area / (width * height))} of the picture`),
      make("span", { class: "score" }, percent(score))), found);
  }

  /** Makes a box; of names that overlap, that of the higher rank is on top. */
  #box(found, rank) {
    const { label, score, box: [left, top, right, bottom], mask } = found, isMask = this.#drawn && mask;
    const { width, height } = /** @type {NonNullable<typeof this.#prediction>} */ (this.#prediction);
    const share = (length, whole) => `${(length / whole) * 100}%`;
    const box = make("div", {
      class: `object${isMask ? " masked" : ""}${top < 0.07 * height ? " inside" : ""}${left > 0.7 * width ? " right" : ""}`,
      style: {
        "--colour": this.colours[label], "--rank": String(rank), left: share(left, width), top: share(top, height),
        width: share(right - left, width), height: share(bottom - top, height),
      },
    }, make("span", {}, `${label} ${score.toFixed(2)}`));
    return isMask ? box : this.#listen(box, found); // a mask is found by its pixels
  }

  /**
   * Draws the shown objects on a picture that is saved.
   * @param {CanvasRenderingContext2D} context
   */
  drawOn(context) {
    if (!this.#prediction) return;
    if (this.#drawn) context.drawImage(this.#drawn.canvas, 0, 0, context.canvas.width, context.canvas.height);
    const { width, height } = context.canvas, side = Math.sqrt(width * height);
    const across = width / this.#prediction.width, down = height / this.#prediction.height, size = Math.max(11, side * LETTERS);
    context.lineWidth = Math.max(2, side * LINE);
    context.font = `${size}px sans-serif`;
    context.textBaseline = "top";
    for (const { label, score, box: [left, top, right, bottom], mask } of [...this.#shown].reverse()) {
      const words = `${label} ${score.toFixed(2)}`, wide = context.measureText(words).width + size / 2, tall = size * 1.3;
      context.strokeStyle = context.fillStyle = this.colours[label];
      if (!mask || !this.#drawn) context.strokeRect(left * across, top * down, (right - left) * across, (bottom - top) * down);
      const x = Math.max(Math.min(left * across, width - wide), 0), y = Math.max(top * down - tall, 0);
      context.fillRect(x, y, wide, tall);
      context.fillStyle = INK;
      context.fillText(words, x + size / 4, y + size / 6);
    }
  }
}

const countOf = (count) => (count === 0 ? "No objects" : count === 1 ? "1 object" : `${whole(count)} objects`);
const areaOf = ({ box: [left, top, right, bottom] }) => (right - left) * (bottom - top);
