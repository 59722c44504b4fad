/** @file The image view: one image, or two side by side with shared controls. */

import { Batch } from "./batch.js";
import { curl, commandBlock } from "./command.js";
import { Controls } from "./controls.js";
import { alarm, announce, byId, make } from "./dom.js";
import { chooseButton, chooseFolderButton, listen, photographButton } from "./intake.js";
import { megabytes, whole } from "./numbers.js";
import { LEAST, TASKS } from "./objects.js";
import { readScale, STRENGTHS } from "./painter.js";
import { cellAt } from "./picture.js";
import { Slot } from "./slot.js";

const TOPS = [5, 10, 20];
const TINT = 0.5;
const FOUND = { detection: "the objects", instances: "the objects and their masks", panoptic: "the segments", segmentation: "the class of every pixel" };

export class AttentionView {
  /** @type {Slot[]} */
  #slots = [];
  #waiting = false;

  /**
   * @param {import("./api.js").Api} api
   * @param {any} model reply of /v1/model
   */
  constructor(api, model) {
    const layers = model.attention?.layers ?? [];
    this.api = api;
    this.model = { ...model, scale: readScale() };
    // occlusion needs hundreds of forward passes, and similarity is of one patch, so neither is the default; objects and classes of
    // pixels are shown alone at first
    const method = model.colours ? null : model.methods.find((name) => !["occlusion", "similarity"].includes(name)) ?? null;
    /** @type {import("./slot.js").View} */
    this.view = {
      method, layer: Math.max(layers.length - 1, 0), head: null, spot: null, opacity: STRENGTHS.light, manner: "light",
      top: TOPS[0], threshold: Math.max(model.threshold ?? 0, LEAST), tint: TINT, hidden: new Set(unseen(model)), shape: "masks",
    };
    this.controls = new Controls(this.model, this.view, () => this.#refresh());
    this.stages = make("div", { class: "slots" });
    this.sheets = make("div", { class: "sheets" });
    this.batch = new Batch(api, this.model, (file) => {
      this.#leave();
      this.#put(file, 0);
      byId("tools").scrollIntoView();
    });
    this.#lay();
    listen((files, target) => this.open(files, this.#slotAt(target)));
  }

  #lay() {
    const tops = make("select", { id: "top", onchange: (event) => this.#top(event) },
      ...TOPS.map((count) => make("option", { selected: count === this.view.top }, count)));
    const replace = (files) => this.open(files, 0);
    this.save = make("button", { type: "button", class: "quiet", onclick: () => this.#save() }, "Save as PNG");
    this.leave = make("button", { type: "button", class: "quiet", onclick: () => this.#leave() }, "Stop comparing");
    this.compare = chooseButton("Compare with another", ([file]) => this.open([file], 1));
    byId("invitation").replaceChildren(make("img", { src: "page/icon.svg", alt: "", width: 72, height: 72 }),
      make("p", { class: "invite" }, "Drop images or a folder anywhere on this page, or paste an image."),
      chooseButton("Choose images", (files) => this.open(files, null), true), ...this.#folder(), photographButton(replace),
      make("p", { class: "lead" }, this.#promise()));
    byId("tools").replaceChildren(chooseButton("Change image", replace, true), photographButton(replace),
      this.compare, this.leave, ...this.#folder(), this.save,
      ...(this.model.classes.length > TOPS[0] && !this.model.colours ? [make("label", { class: "top" }, "Classes ", tops)] : []));
    byId("desk").replaceChildren(this.stages, this.controls.element);
    byId("heads-sheets").replaceChildren(this.sheets);
  }

  /** Returns the button for a folder, where the model answers. */
  #folder() {
    return this.model.classes.length ? [chooseFolderButton("Choose a folder", (files) => this.open(files, null))] : [];
  }

  /** Returns the description of the view, before an image is chosen. */
  #promise() {
    const { task, classes, attention } = this.model;
    const found = FOUND[task] ?? "the predicted class";
    const answers = classes.length ? `${found} (of ${whole(classes.length)})` : "";
    const looks = attention ? "the attention of each layer and head" : "the regions that the prediction depends on";
    return `The page shows ${[answers, looks].filter(Boolean).join(" and ")}. Two images are compared, more are listed in a table.`;
  }

  /**
   * Opens images: one, two side by side, or a table of more.
   * @param {File[]} files
   * @param {number | null} place index of the slot, null for any
   */
  open(files, place) {
    const [first, second] = files;
    if (!first) return announce("The dropped data contains no image.");
    if (files.length > 2 && this.model.classes.length) {
      byId("picture").classList.add("listing");
      announce("");
      this.batch.open(files);
      return;
    }
    if (second && !place) {
      this.#put(first, 0);
      return this.#put(second, 1);
    }
    this.#put(first, place ?? 0);
  }

  #put(file, place) {
    const most = this.model.limits?.body_bytes;
    byId("refused").replaceChildren();
    if (most && file.size > most) {
      const message = `the file ${file.name} has ${megabytes(file.size)}, the limit of the server is ${megabytes(most)}`;
      byId("refused").replaceChildren(alarm({ message, remedy: "send a smaller file, or start the server with a larger limit" }));
      return;
    }
    const slot = this.#slots[place] ?? this.#add();
    if (this.#slots.length === 1) this.view.spot = null; // two images share the query patch
    this.controls.show();
    byId("picture").classList.add("looking");
    announce(`Processing ${file.name} …`);
    slot.open(file, this.view);
    this.#arrange();
  }

  #add() {
    const slot = new Slot(this.api, this.model, {
      onPick: (spot) => { this.view.spot = spot; this.#changed(); },
      onChoose: (layer, head) => { Object.assign(this.view, { method: "attention", layer, head }); this.#changed(); },
      onSwitch: (label) => {
        const { hidden } = this.view;
        if (!hidden.delete(label)) hidden.add(label);
        this.#refresh();
      },
      onShape: (shape) => { this.view.shape = shape; this.#refresh(); },
      onTrouble: () => this.#arrange(),
    });
    this.#slots.push(slot);
    this.stages.append(slot.element);
    this.sheets.append(slot.heads);
    return slot;
  }

  #leave() {
    this.#slots.splice(1).forEach((slot) => {
      slot.close();
      slot.element.remove();
      slot.heads.remove();
    });
    this.#arrange();
  }

  #arrange() {
    const two = this.#slots.length > 1;
    byId("desk").classList.toggle("two", two);
    this.sheets.classList.toggle("two", two);
    this.leave.hidden = !two;
    const nothing = this.#slots.every((slot) => slot.empty);
    byId("picture").classList.toggle("nothing", nothing);
    this.save.hidden = this.compare.hidden = nothing;
    this.#tell();
  }

  #slotAt(target) {
    const place = this.#slots.findIndex((slot) => target && slot.element.contains(target));
    return place < 0 ? null : place;
  }

  #changed() {
    this.controls.show();
    this.#refresh();
  }

  /** Updates the slots at most once per animation frame. */
  #refresh() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#slots.forEach((slot) => slot.update(this.view));
      this.#tell();
    });
  }

  #top(event) {
    this.view.top = Number(event.target.value);
    this.#slots.forEach((slot) => slot.predict(this.view));
    this.#tell();
  }

  /** Updates the commands from the view. */
  #tell() {
    const file = this.#slots[0]?.picture?.file.name;
    if (file === undefined) return;
    const { method, layer, head, top, threshold } = this.view, { task } = this.model, options = { file, token: this.api.usesToken };
    const asked = `method=${method}${method === "attention" ? `&layer=${layer}&head=${head ?? "mean"}` : ""}${this.#query()}`;
    const query = TASKS.includes(task) ? `?threshold=${threshold}` : ["panoptic", "segmentation"].includes(task) ? "" : `?top=${top}`;
    byId("commands").replaceChildren(
      this.model.classes.length ? commandBlock("Prediction", curl(`v1/predict${query}`, options)) : "",
      this.model.colours
        ? commandBlock("Drawn on the image", curl(`v1/predict${query}${query ? "&" : "?"}as=png`, { ...options, out: "drawn.png" })) : "",
      method ? commandBlock("Explanation", curl(`v1/explain?${asked}&as=png`, { ...options, out: `${method}.png` })) : "");
    byId("heads").hidden = method !== "attention";
  }

  /** Returns the query patch as a request parameter. */
  #query() {
    const { method, layer, spot } = this.view, own = this.model.attention?.layers[layer];
    const map = method === "similarity" ? this.model.feature_map : method === "attention" && own.asks === "all" ? own.map : null;
    if (!spot || !map) return "";
    const [rows, columns] = map, { row, column } = cellAt({ rows, columns, reach: [1, 1] }, spot);
    return `&query=${row},${column}`;
  }

  async #save() {
    for (const slot of this.#slots) {
      const blob = slot.empty ? null : await slot.blob();
      if (!blob) continue;
      const href = URL.createObjectURL(blob), name = slot.picture?.file.name.replace(/\.[^.]*$/, "") || "picture";
      make("a", { href, download: `${name}.${this.view.method ?? "plain"}.png` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 10_000);
    }
  }
}

/** Returns the classes that are switched off at first: a background, which has no colour. */
const unseen = ({ classes, colours }) => classes.filter((_, at) => colours?.[at] === "#000000");
