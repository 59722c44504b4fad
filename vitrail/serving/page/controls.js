/** @file The controls: method, layer, head, strength and display mode. */

import { make } from "./dom.js";
import { STRENGTHS } from "./painter.js";
import { askerOf } from "./slot.js";

const METHODS = { attention: "Attention", rollout: "Rollout", gradient: "Gradient", occlusion: "Occlusion" };
const MANNERS = { light: "Light", colours: "Colours" };

export class Controls {
  /** the strength of each display mode */
  #strengths = { ...STRENGTHS };

  /**
   * @param {any} model reply of /v1/model
   * @param {import("./slot.js").View} view modified in place
   * @param {(what: keyof import("./slot.js").View) => void} onChange
   */
  constructor(model, view, onChange) {
    Object.assign(this, { model, view, onChange });
    this.methods = choice("method", "Method", model.methods.map((name) => [name, METHODS[name] ?? name]), view.method,
      (value) => this.#set("method", value));
    this.layer = slider("layer", "Layer", (value) => this.#set("layer", value));
    this.head = slider("head", "Head", (value) => this.#set("head", value === 0 ? null : value - 1));
    this.opacity = slider("opacity", "Strength", (value) => this.#set("opacity", value / 100));
    this.manners = choice("manner", "Display", Object.entries(MANNERS), view.manner, (value) => this.#set("manner", value));
    this.back = make("button", { type: "button", class: "quiet", onclick: () => this.#set("spot", null) });
    this.hint = make("p", { class: "hint" }, "Click a patch, or select one with the arrow keys, to see what it attends to.");
    this.element = make("div", { class: "controls", role: "group", "aria-label": "Display options" },
      this.methods, make("div", { class: "sliders" }, this.layer.element, this.head.element, this.opacity.element), this.manners,
      make("div", { class: "asker" }, this.hint, this.back));
    this.show();
  }

  #set(what, value) {
    this.view[what] = value;
    if (what === "opacity") this.#strengths[this.view.manner] = value;
    if (what === "manner") this.view.opacity = this.#strengths[value];
    this.show();
    this.onChange(what);
  }

  /** Updates the controls from the view. */
  show() {
    const { view, model } = this, layers = model.attention?.layers ?? [];
    const attention = view.method === "attention", heads = layers[view.layer]?.heads ?? 1;
    this.layer.element.hidden = this.head.element.hidden = !attention;
    this.back.hidden = !view.spot || !attention;
    this.hint.hidden = !attention || Boolean(view.spot) || layers[view.layer]?.asks !== "all";
    if (attention) {
      this.back.textContent = `Back to ${askerOf(layers[view.layer])}`;
      const head = view.head === null ? 0 : Math.min(view.head, heads - 1) + 1;
      this.layer.show(view.layer, layers.length - 1, `${view.layer}`);
      this.head.show(head, heads, head === 0 ? "mean" : `${head - 1}`);
    }
    this.opacity.show(Math.round(view.opacity * 100), 100, `${Math.round(view.opacity * 100)} %`);
    this.methods.hidden = !model.methods.length;
    this.opacity.element.hidden = this.manners.hidden = !view.method;
  }
}

/**
 * Makes a slider with its name and value.
 * @param {string} id
 * @param {string} name
 * @param {(value: number) => void} onInput
 */
function slider(id, name, onInput) {
  const input = make("input", { type: "range", id, min: 0, max: 1, step: 1, oninput: () => onInput(Number(input.value)) });
  const shown = make("span", { class: "value", "aria-hidden": "true" }); // the slider announces its value
  const element = make("div", { class: "slider" }, make("label", { for: id }, name), input, shown);
  return {
    element,
    /** @param {number} value @param {number} most @param {string} words */
    show(value, most, words) {
      input.max = String(most);
      input.value = String(value);
      input.style.setProperty("--done", `${most ? (value / most) * 100 : 0}%`);
      input.setAttribute("aria-valuetext", words);
      shown.textContent = words;
    },
  };
}

/**
 * Makes a group of radio buttons.
 * @param {string} name
 * @param {string} legend
 * @param {[string, string][]} options
 * @param {string | null} chosen
 * @param {(value: string) => void} onChange
 */
function choice(name, legend, options, chosen, onChange) {
  return make("fieldset", { class: "choice" }, make("legend", {}, legend),
    make("div", { class: "options" }, ...options.map(([value, words]) => make("label", {},
      make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onChange(value) }),
      make("span", {}, words)))));
}
