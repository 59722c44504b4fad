/** @file The prediction: the best class as a heading, and the top classes as bars with their scores. */

import { make } from "./dom.js";
import { percent } from "./numbers.js";

export class Answer {
  /** @param {boolean} multiLabel whether classes are scored independently */
  constructor(multiLabel) {
    this.multiLabel = multiLabel;
    this.words = "";
    this.element = make("div", { class: "answer", role: "group", "aria-label": "Prediction" });
  }

  /**
   * Returns the parameters of a request.
   * @param {import("./slot.js").View} view
   */
  query({ top }) {
    return `top=${top}`;
  }

  wait() {
    this.element.replaceChildren(make("p", { class: "lead" }, "Computing the prediction …"));
  }

  /** @param {{label: string, score: number, top: {label: string, score: number}[], unknown?: boolean}} prediction */
  show({ label, score, top, unknown }) {
    const bars = top.map((entry) => make("li", { style: { "--share": String(entry.score) } },
      make("span", { class: "label" }, entry.label), make("span", { class: "score" }, percent(entry.score)),
      make("span", { class: "track", "aria-hidden": "true" })));
    this.element.replaceChildren(
      ...(unknown ? [make("p", { class: "wrong" }, "Unlike the training images: the prediction may mean nothing.")] : []),
      make("h2", { class: "best" }, label),
      make("p", { class: "lead" }, percent(score), this.multiLabel ? "; each class is scored independently." : " probability"),
      make("ol", { class: "bars" }, ...bars));
    this.words = `${unknown ? "Unlike the training images. " : ""}${label}, ${percent(score)} probability.`;
  }

  /** The text for an encoder without a head. */
  none() {
    this.element.replaceChildren(make("p", { class: "lead" },
      "This model has no head and predicts no classes. Only its attention is shown."));
  }

  /** Removes the prediction. Errors are shown below the picture. */
  clear() {
    this.element.replaceChildren();
  }

  /** Nothing of a class is drawn on a picture that is saved. */
  drawOn() {}
}
