/** @file One image in the image view: its picture, stage, prediction and sheet of heads. */

import { Answer } from "./answer.js";
import { alarm, announce, make, speak } from "./dom.js";
import { fallen, percent, short } from "./numbers.js";
import { Objects } from "./objects.js";
import { rangeOf } from "./painter.js";
import { cellAt, entryOf, mapOf, Picture, previewOf, sceneOf } from "./picture.js";
import { Regions, Segments } from "./regions.js";
import { Sheet } from "./sheet.js";
import { Stage } from "./stage.js";

/**
 * @typedef {object} View the display options, shared by all images
 * @property {string | null} method
 * @property {number} layer
 * @property {number | null} head null for the mean of all heads
 * @property {import("./picture.js").Spot | null} spot position of the query patch
 * @property {number} opacity
 * @property {import("./painter.js").Manner} manner
 * @property {number} top number of classes
 * @property {number} threshold least score of an object
 * @property {number} tint strength of the colours of classes
 * @property {Set<string>} hidden classes that are switched off
 * @property {"masks" | "boxes"} shape of objects that have masks
 */

const SETTLE = 70; // milliseconds before a selected patch is requested, to skip patches in between
const WORDS = { attention: percent, rollout: percent, gradient: short, occlusion: fallen };
const ANSWERS = { detection: Objects, instances: Objects, panoptic: Segments, segmentation: Regions }; // by task; any other is answered by classes
const OF_THE_FILE = ["bad_image", "too_large", "unsupported_media_type"]; // errors of the file, not of the request

const capital = (words) => words[0].toUpperCase() + words.slice(1);

/**
 * Returns the name of a layer's default query: what the output is pooled from.
 * @param {{reads: string}} layer
 */
export const askerOf = ({ reads }) => (reads === "patches" ? "the mean of all patches" : "the class token");

export class Slot {
  #turn = 0;
  /** @type {import("./painter.js").Scene | null} */
  #scene = null; // with the region that the model sees, from the server
  /** @type {import("./painter.js").Scene | null} */
  #plain = null; // as it is shown without a map
  /** @type {Picture | null} */
  picture = null;
  /** @type {any} the reply that is shown */
  #prediction = null;
  /** @type {globalThis.Map<"answer" | "maps", any>} current errors */
  #wrong = new globalThis.Map();

  /**
   * @param {import("./api.js").Api} api
   * @param {any} model reply of /v1/model
   * @param {{onPick: (spot: import("./picture.js").Spot | null) => void, onChoose: (layer: number, head: number) => void,
   *   onSwitch: (label: string) => void, onShape: (shape: "masks" | "boxes") => void, onTrouble: () => void}} on callbacks;
   *   onTrouble is called when the errors change
   */
  constructor(api, model, { onPick, onChoose, onSwitch, onShape, onTrouble }) {
    Object.assign(this, { api, model, onTrouble });
    this.stage = new Stage(onPick);
    this.answer = answerOf(model, this.stage, { onSwitch, onShape });
    this.sheet = new Sheet(onChoose);
    this.name = make("p", { class: "key" });
    this.sheetName = make("p", { class: "key" });
    this.heads = make("div", {}, this.sheetName, this.sheet.element);
    this.trouble = make("div");
    this.stage.element.prepend(this.name);
    this.element = make("div", { class: "slot" },
      make("div", { class: "view" }, this.stage.element, this.trouble), this.answer.element);
  }

  /**
   * @param {File} file
   * @param {View} view
   */
  async open(file, view) {
    this.close();
    const picture = this.picture = new Picture(this.api, file);
    this.#scene = this.#plain = this.#prediction = null;
    this.answer.clear();
    this.name.textContent = this.sheetName.textContent = file.name;
    // remove the previous picture before the new name is shown
    this.stage.clear();
    this.sheet.clear();
    this.#wrong.clear();
    this.#complain();
    const shown = previewOf(file).then((scene) => {
      if (this.picture !== picture || this.#scene || this.#refused) return;
      this.#show(scene, view);
      this.#wait(view);
      this.#complain();
    }, () => this.#askForPicture(picture, view)); // the browser cannot decode the file
    const predicted = this.predict(view);
    await Promise.all([shown, predicted, this.update(view)]);
    if (this.picture === picture && !this.model.classes.length) speak("The explanation is shown.");
  }

  close() {
    this.picture?.close();
  }

  /** Whether there is no picture because of an error. */
  get empty() {
    return this.#wrong.size > 0 && this.stage.empty;
  }

  /** Whether the server refused this file. */
  get #refused() {
    return [...this.#wrong.values()].some(({ code }) => OF_THE_FILE.includes(code));
  }

  /** @param {View} view */
  async predict(view) {
    const picture = this.picture;
    if (!picture || this.#refused) return;
    if (!this.model.classes.length) return this.answer.none();
    this.answer.wait();
    try {
      const prediction = await picture.predict(this.answer.query(view));
      if (picture !== this.picture) return;
      this.#prediction = prediction;
      this.#right("answer");
      await this.answer.show(prediction, view);
      speak(this.answer.words);
    } catch (error) {
      if (picture === this.picture) this.#fail("answer", error);
    }
  }

  /**
   * Shows the explanation for a view; a later call takes precedence.
   * @param {View} view
   */
  async update(view) {
    const turn = ++this.#turn, picture = this.picture;
    const late = () => turn !== this.#turn;
    if (!picture || this.#refused) return;
    if (view.method && this.#prediction) this.answer.show(this.#prediction, view);
    if (!view.method) return this.#plain && this.#show(this.#plain, view);
    try {
      this.element.classList.add("busy");
      this.#wait(view);
      const own = await picture.explain(view.method);
      const scene = this.#scene ?? await sceneOf(own);
      if (late()) return;
      this.#scene = this.#plain = scene;
      this.#right("maps");
      await this.#display(view, scene, own, late);
    } catch (error) {
      if (!late()) this.#fail("maps", error);
    } finally {
      if (!late()) this.element.classList.remove("busy");
    }
  }

  /** Shows a message for occlusion, which takes seconds. A cached map replaces it before the next frame. */
  #wait({ method }) {
    if (method === "occlusion") this.stage.wait("Computing occlusion …");
  }

  /** Shows the picture and, above it, what the model found. */
  #show(scene, view) {
    this.#plain = scene;
    this.stage.showPlain(scene);
    if (this.#prediction) this.answer.show(this.#prediction, view);
  }

  /** Shows the picture that comes with an explanation, where no explanation is asked for. */
  async #askForPicture(picture, view) {
    const method = this.model.methods.find((name) => name !== "occlusion");
    if (view.method || !method) return;
    try {
      const scene = await sceneOf(await picture.explain(method));
      if (this.picture === picture && !this.#refused) this.#show(scene, view);
    } catch (error) {
      if (this.picture === picture) this.#fail("maps", error);
    }
  }

  /** Returns the displayed picture as a PNG. */
  blob() {
    return this.stage.blob(this.answer);
  }

  #fail(what, error) {
    if (error.name === "AbortError") return;
    this.#wrong.set(what, error);
    if (what === "answer") this.answer.clear();
    if (this.#refused) this.stage.clear();
    else if (what === "maps" && this.#scene) this.stage.showPlain(this.#scene);
    announce("");
    this.#complain();
  }

  #right(what) {
    if (this.#wrong.delete(what)) this.#complain();
  }

  /** Shows the errors, without duplicates, and hides an empty stage. */
  #complain() {
    const errors = new globalThis.Map([...this.#wrong.values()].map((error) => [error.message, error]));
    this.trouble.replaceChildren(...[...errors.values()].map((error) => alarm(error, this.picture?.file.name)));
    this.stage.element.hidden = this.empty;
    this.onTrouble();
  }

  async #display(view, scene, own, late) {
    const entry = entryOf(own, view.layer), asks = this.model.attention?.layers[view.layer]?.asks === "all";
    if (!entry) return;
    const similarity = view.method === "similarity", pickable = similarity || (view.method === "attention" && asks);
    const cell = pickable && view.spot ? cellAt(entry, view.spot) : null;
    const from = cell ? await this.#asked(view.method, cell, late) : own;
    if (late() || !from) return;
    const shown = entryOf(from, view.layer) ?? entry, map = mapOf(shown, view.method === "attention" ? view.head : null);
    const words = WORDS[view.method] ?? short;
    this.sheet.element.hidden = view.method !== "attention";
    // a map of nothing has no scale, and would only darken the picture
    if (!map.values.some((value) => value > 0)) return this.stage.showPlain(scene, this.#caption(view, cell, asks, map, shown.note));
    this.stage.show(scene, map, {
      ...view, scale: this.model.scale, range: rangeOf(map.values), pickable, words,
      caption: this.#caption(view, cell, asks, map, shown.note),
    });
    this.stage.mark(cell ?? (similarity ? centreOf(entry) : null));
    if (view.method === "attention") this.sheet.draw(scene, from, cell ? entry : null, { ...view, scale: this.model.scale });
    this.sheet.choose(view.layer, view.method === "attention" ? view.head : null);
  }

  /** Returns the maps of a query patch, or null if another one was selected meanwhile. */
  async #asked(method, cell, late) {
    const picture = /** @type {Picture} */ (this.picture);
    this.stage.mark(cell);
    if (!picture.knows(method, cell)) await new Promise((resolve) => setTimeout(resolve, SETTLE));
    return late() ? null : picture.explain(method, cell);
  }

  /** Returns the caption of the picture. */
  #caption({ method, layer, head, spot }, cell, asks, map, note) {
    if (!map.values.some((value) => value > 0)) {
      return method === "occlusion" ? "Occlusion: covering one region does not lower the predicted probability, whichever it is."
        : `${capital(method)}: no region has a positive value.`;
    }
    if (method === "rollout") return "Rollout: attention from the output to each patch, through all layers.";
    if (method === "gradient") return "Gradient: attention weighted by its gradient for the predicted class.";
    if (method === "occlusion") return `Occlusion: decrease of the predicted probability when a region is covered${note ? ` (${note})` : ""}.`;
    if (method === "similarity") {
      const { row, column } = cell ?? centreOf(map);
      return `Similarity: cosine of the patch in row ${row}, column ${column} with all patches, by the last features.`;
    }
    const heads = this.model.attention.layers[layer].heads;
    const who = head === null ? `layer ${layer}, mean of all heads` : `layer ${layer}, head ${Math.min(head, heads - 1)}`;
    const asker = cell ? `the patch in row ${cell.row}, column ${cell.column}` : askerOf(this.model.attention.layers[layer]);
    const only = spot && !asks ? " In this layer the class token is the only query." : "";
    return `${capital(who)}: attention of ${asker}.${only}`;
  }
}

/** Returns the patch in the centre of a map, which the method similarity compares by default. */
const centreOf = ({ rows, columns }) => ({ row: Math.floor(rows / 2), column: Math.floor(columns / 2) });

/** Returns the view of a model's answers. */
function answerOf({ task, classes, colours, multi_label: multiLabel }, stage, on) {
  const View = ANSWERS[task];
  if (!View) return new Answer(multiLabel);
  return new View(stage, Object.fromEntries(classes.map((name, at) => [name, colours[at]])), on);
}
