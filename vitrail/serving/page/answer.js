/** @file What the model answers: the best class in large letters, the next ones as bars with their numbers. */

import { make } from "./dom.js";
import { percent } from "./numbers.js";

export class Answer {
  constructor() {
    this.element = make("div", { class: "answer", role: "group", "aria-label": "The answer" });
  }

  wait() {
    this.element.replaceChildren(make("p", { class: "lead" }, "Asking the model …"));
  }

  /**
   * @param {{label: string, score: number, top: {label: string, score: number}[]}} prediction
   * @param {boolean} multiLabel
   */
  show({ label, score, top }, multiLabel) {
    const bars = top.map((entry) => make("li", { style: { "--share": String(entry.score) } },
      make("span", { class: "label" }, entry.label), make("span", { class: "score" }, percent(entry.score)),
      make("span", { class: "track", "aria-hidden": "true" })));
    this.element.replaceChildren(
      make("h2", { class: "best" }, label),
      make("p", { class: "lead" }, percent(score), multiLabel ? "; each class is a question of its own." : " sure"),
      make("ol", { class: "bars" }, ...bars));
  }

  /** What an encoder without a head has to say. */
  none() {
    this.element.replaceChildren(make("p", { class: "lead" },
      "This model has no head, so it gives no classes; it shows what it looks at."));
  }

  /** There is none; why is said where the picture is. */
  clear() {
    this.element.replaceChildren();
  }
}
