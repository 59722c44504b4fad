/** @file The classes in a picture as switches, each with its colour, its name and a number. */

import { make } from "./dom.js";

/** @typedef {{label: string, colour: string, number: string}} Entry */

export class Switches {
  /** @type {Map<string, HTMLButtonElement>} by class */
  #buttons = new Map();

  /** @param {(label: string) => void} onSwitch */
  constructor(onSwitch) {
    this.onSwitch = onSwitch;
    this.element = make("ul", { class: "switches", "aria-label": "Classes" });
  }

  /**
   * @param {Entry[]} entries
   * @param {Set<string>} hidden classes that are switched off
   */
  show(entries, hidden) {
    const labels = [...this.#buttons.keys()];
    // the same buttons as before keep the focus
    if (labels.length !== entries.length || entries.some(({ label }, at) => label !== labels[at])) this.#build(entries);
    for (const { label, number } of entries) {
      const button = /** @type {HTMLButtonElement} */ (this.#buttons.get(label));
      button.setAttribute("aria-pressed", String(!hidden.has(label)));
      /** @type {HTMLElement} */ (button.lastChild).textContent = number;
    }
  }

  #build(entries) {
    this.#buttons = new Map(entries.map(({ label, colour }) => [label, make("button", {
      type: "button", class: "switch", style: { "--colour": colour }, onclick: () => this.onSwitch(label),
    }, make("span", { class: "square", "aria-hidden": "true" }), make("span", { class: "label" }, label), make("span", { class: "score" }))]));
    this.element.replaceChildren(...[...this.#buttons.values()].map((button) => make("li", {}, button)));
  }
}
