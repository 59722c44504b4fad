/** @file The controls: method, layer, head, strength and display mode. */

import { make } from "./dom.js";
import { LEAST, TASKS } from "./objects.js";
import { STRENGTHS } from "./painter.js";
import { askerOf } from "./slot.js";

const METHODS = { attention: "Attention", rollout: "Rollout", gradient: "Gradient", occlusion: "Occlusion", similarity: "Similarity" };
const HINT = "Click a patch, or select one with the arrow keys, to see ";
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
    const methods = model.methods.map((name) => [name, METHODS[name] ?? name]);
    this.methods = choice("method", model.colours ? "Map on the image" : "Method", model.colours ? [["", "None"], ...methods] : methods,
      view.method ?? "", (value) => this.#set("method", value || null));
    this.threshold = slider("threshold", "Threshold", (value) => this.#set("threshold", value / 100), LEAST * 100);
    this.tint = slider("tint", "Tint", (value) => this.#set("tint", value / 100));
    this.layer = slider("layer", "Layer", (value) => this.#set("layer", value));
    this.head = slider("head", "Head", (value) => this.#set("head", value === 0 ? null : value - 1));
    this.opacity = slider("opacity", "Strength", (value) => this.#set("opacity", value / 100));
    this.manners = choice("manner", "Display", Object.entries(MANNERS), view.manner, (value) => this.#set("manner", value));
    this.back = make("button", { type: "button", class: "quiet", onclick: () => this.#set("spot", null) });
    this.hint = make("p", { class: "hint" });
    this.asker = make("div", { class: "asker" }, this.hint, this.back);
    this.element = make("div", { class: "controls", role: "group", "aria-label": "Display options" },
      make("div", { class: "sliders" }, this.threshold.element, this.tint.element), this.methods,
      make("div", { class: "sliders" }, this.layer.element, this.head.element, this.opacity.element), this.manners,
      this.asker);
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
    const similarity = view.method === "similarity", asks = attention ? layers[view.layer]?.asks === "all" : similarity;
    this.back.hidden = !view.spot || !(attention || similarity);
    this.asker.hidden = !view.method;
    this.hint.hidden = !asks || Boolean(view.spot);
    this.hint.textContent = HINT + (similarity ? "which patches are like it." : "what it attends to.");
    if (similarity) this.back.textContent = "Back to the patch in the centre";
    if (attention) {
      this.back.textContent = `Back to ${askerOf(layers[view.layer])}`;
      const head = view.head === null ? 0 : Math.min(view.head, heads - 1) + 1;
      this.layer.show(view.layer, layers.length - 1, `${view.layer}`);
      this.head.show(head, heads, head === 0 ? "mean" : `${head - 1}`);
    }
    this.threshold.show(Math.round(view.threshold * 100), 100, `${Math.round(view.threshold * 100)} %`);
    this.threshold.element.hidden = !TASKS.includes(model.task);
    this.tint.show(Math.round(view.tint * 100), 100, `${Math.round(view.tint * 100)} %`);
    this.tint.element.hidden = !["panoptic", "segmentation"].includes(model.task) || Boolean(view.method);
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
 * @param {number} [least]
 */
function slider(id, name, onInput, least = 0) {
  const input = make("input", { type: "range", id, min: least, max: least + 1, step: 1, oninput: () => onInput(Number(input.value)) });
  const shown = make("span", { class: "value", "aria-hidden": "true" }); // the slider announces its value
  const element = make("div", { class: "slider" }, make("label", { for: id }, name), input, shown);
  return {
    element,
    /** @param {number} value @param {number} most @param {string} words */
    show(value, most, words) {
      input.max = String(most);
      input.value = String(value);
      input.style.setProperty("--done", `${most > least ? ((value - least) / (most - least)) * 100 : 0}%`);
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
