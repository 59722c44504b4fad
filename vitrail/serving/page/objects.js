/** @file The objects of a detector: boxes over the picture, switches for their classes, and a list by score. */

import { make } from "./dom.js";
import { percent, whole } from "./numbers.js";
import { Switches } from "./switches.js";

export const LEAST = 0.05; // the least threshold of the slider
const NAMED = 20; // boxes with a name on the picture; of more, only the box under the pointer has one
const LINE = 1 / 240, LETTERS = 1 / 36; // of a saved picture, as shares of its mean side
const INK = "#0b0d12"; // of words on the colour of a class

/** @typedef {{label: string, score: number, box: [number, number, number, number]}} Found left, top, right, bottom in pixels */

export class Objects {
  /** @type {{width: number, height: number, objects: Found[]} | null} */
  #prediction = null;
  /** @type {Found[]} objects that are shown */
  #shown = [];

  /**
   * @param {import("./stage.js").Stage} stage
   * @param {Record<string, string>} colours by class
   * @param {(label: string) => void} onSwitch
   */
  constructor(stage, colours, onSwitch) {
    Object.assign(this, { stage, colours });
    this.element = make("div", { class: "answer", role: "group", "aria-label": "Objects" });
    this.title = make("h2", { class: "best" });
    this.lead = make("p", { class: "lead" });
    this.switches = new Switches(onSwitch);
    this.list = make("ol", { class: "found", "aria-label": "Objects by score" });
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
    this.#prediction = null;
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
    this.#prediction = prediction;
    this.#shown = certain.filter(({ label }) => !view.hidden.has(label));
    this.title.textContent = countOf(this.#shown.length);
    this.lead.textContent = `with a score of ${Math.round(view.threshold * 100)} % or more`;
    this.switches.show(labels.map((label) => ({ label, colour: this.colours[label], number: whole(counts.get(label)) })), view.hidden);
    this.#draw();
    if (!this.title.isConnected) this.element.replaceChildren(this.title, this.lead, this.switches.element, this.list);
    const listed = labels.filter((label) => !view.hidden.has(label)).map((label) => `${label} ${counts.get(label)}`).join(", ");
    this.words = `${countOf(this.#shown.length)}${listed ? `: ${listed}` : ""}.`;
    this.stage.describe(this.words, view);
  }

  #draw() {
    const boxes = this.#shown.map((found, at) => this.#box(found, this.#shown.length - at));
    const rows = this.#shown.map(({ label, score }) => make("li", { class: "object-row", tabindex: 0, style: { "--colour": this.colours[label] } },
      make("span", { class: "square", "aria-hidden": "true" }), make("span", { class: "label" }, label), make("span", { class: "score" }, percent(score))));
    const light = (at, on) => {
      boxes[at].classList.toggle("on", on);
      rows[at].classList.toggle("on", on);
      this.stage.layer.classList.toggle("some", on);
    };
    [boxes, rows].flat().forEach((part, at) => {
      for (const [event, on] of /** @type {[string, boolean][]} */ ([["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]])) {
        part.addEventListener(event, () => light(at % boxes.length, on));
      }
    });
    this.list.replaceChildren(...rows);
    // large boxes below small ones, which could not be pointed at otherwise
    const order = boxes.map((_, at) => at).sort((a, b) => areaOf(this.#shown[b]) - areaOf(this.#shown[a]));
    this.stage.layer.replaceChildren(...order.map((at) => boxes[at]));
    this.stage.layer.classList.toggle("many", boxes.length > NAMED);
    this.stage.layer.classList.remove("some");
  }

  /** Makes a box; of names that overlap, that of the higher rank is on top. */
  #box({ label, score, box: [left, top, right, bottom] }, rank) {
    const { width, height } = /** @type {NonNullable<typeof this.#prediction>} */ (this.#prediction);
    const share = (length, whole) => `${(length / whole) * 100}%`;
    return make("div", {
      class: `object${top < 0.07 * height ? " inside" : ""}${left > 0.7 * width ? " right" : ""}`,
      style: {
        "--colour": this.colours[label], "--rank": String(rank), left: share(left, width), top: share(top, height),
        width: share(right - left, width), height: share(bottom - top, height),
      },
    }, make("span", {}, `${label} ${score.toFixed(2)}`));
  }

  /**
   * Draws the shown objects on a picture that is saved.
   * @param {CanvasRenderingContext2D} context
   */
  drawOn(context) {
    if (!this.#prediction) return;
    const { width, height } = context.canvas, side = Math.sqrt(width * height);
    const across = width / this.#prediction.width, down = height / this.#prediction.height, size = Math.max(11, side * LETTERS);
    context.lineWidth = Math.max(2, side * LINE);
    context.font = `${size}px sans-serif`;
    context.textBaseline = "top";
    for (const { label, score, box: [left, top, right, bottom] } of [...this.#shown].reverse()) {
      const words = `${label} ${score.toFixed(2)}`, wide = context.measureText(words).width + size / 2, tall = size * 1.3;
      context.strokeStyle = context.fillStyle = this.colours[label];
      context.strokeRect(left * across, top * down, (right - left) * across, (bottom - top) * down);
      const x = Math.max(Math.min(left * across, width - wide), 0), y = Math.max(top * down - tall, 0);
      context.fillRect(x, y, wide, tall);
      context.fillStyle = INK;
      context.fillText(words, x + size / 4, y + size / 6);
    }
  }
}

const countOf = (count) => (count === 0 ? "No objects" : count === 1 ? "1 object" : `${whole(count)} objects`);
const areaOf = ({ box: [left, top, right, bottom] }) => (right - left) * (bottom - top);
