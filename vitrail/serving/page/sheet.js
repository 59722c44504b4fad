/** @file The sheet of all heads: one row per layer. Clicking a tile selects its head. */

import { make } from "./dom.js";
import { paint, rangeOf, STRENGTHS } from "./painter.js";
import { mapOf, small } from "./picture.js";

const TILE = 88, LARGE = 144; // pixels of a tile's longer side; large for at most FEW heads
const FEW = 6;
const BLOCKS = [0, 4, 3, 2, 2]; // columns of layers by number of heads; 1 for more heads
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Sheet {
  /** @type {HTMLButtonElement[][]} by row and column */
  #tiles = [];
  /** @type {unknown[]} key of the current content */
  #drawn = [];

  /** @param {(layer: number, head: number) => void} onChoose */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.element = make("div", { class: "sheet", role: "radiogroup", "aria-label": "All heads of all layers" });
    this.element.addEventListener("keydown", (event) => this.#move(event));
  }

  clear() {
    this.#tiles = this.#drawn = [];
    this.element.replaceChildren();
  }

  /**
   * Draws every head of an explanation, unless it is drawn already.
   * @param {import("./painter.js").Scene} scene
   * @param {import("./picture.js").Explanation} explanation
   * @param {{rows: number, columns: number} | null} grid of the query patch; layers with maps of another size are left out
   * @param {{manner: import("./painter.js").Manner, scale: Uint8ClampedArray}} style
   */
  draw(scene, explanation, grid, style) {
    const key = [explanation, style.manner, grid?.rows, grid?.columns];
    if (key.every((part, at) => part === this.#drawn[at])) return;
    this.#drawn = key;
    const entries = explanation.maps.filter((entry) => !grid || (entry.rows === grid.rows && entry.columns === grid.columns));
    const widest = Math.max(1, ...entries.map((entry) => entry.values.length));
    const little = small(scene, widest > FEW ? TILE : LARGE);
    this.#tiles = entries.map((entry) => entry.values.map((_, head) => this.#tile(little, entry, head, style)));
    this.element.style.setProperty("--heads", String(widest));
    this.element.classList.toggle("few", widest <= FEW);
    const rows = entries.map((entry, row) => make("div", { class: "row", role: "presentation" },
      make("span", { class: "name" }, `layer ${entry.layer}`), ...this.#tiles[row]));
    const high = Math.ceil(rows.length / (BLOCKS[widest] ?? 1)), blocks = [];
    while (rows.length) blocks.push(make("div", { role: "presentation" }, numbers(widest), ...rows.splice(0, high)));
    this.element.replaceChildren(...blocks);
  }

  /**
   * @param {number} layer
   * @param {number | null} head
   */
  choose(layer, head) {
    const tiles = this.#tiles.flat();
    for (const tile of tiles) {
      const chosen = Number(tile.dataset.layer) === layer && Number(tile.dataset.head) === head && head !== null;
      tile.setAttribute("aria-checked", String(chosen));
      tile.tabIndex = chosen ? 0 : -1;
    }
    if (tiles.length && !tiles.some((tile) => tile.tabIndex === 0)) tiles[0].tabIndex = 0;
  }

  #tile(scene, entry, head, style) {
    const { width, height } = scene.picture, map = mapOf(entry, head);
    const canvas = make("canvas", { width, height, "aria-hidden": "true" });
    const painted = paint(scene, map, { ...style, opacity: STRENGTHS[style.manner], range: rangeOf(map.values) });
    canvas.getContext("2d")?.putImageData(painted, 0, 0);
    return make("button", {
      type: "button", role: "radio", "aria-checked": "false", tabindex: -1, title: `layer ${entry.layer}, head ${head}`,
      "aria-label": `layer ${entry.layer}, head ${head}`, "data-layer": entry.layer, "data-head": head,
      onclick: () => this.onChoose(/** @type {number} */ (entry.layer), head),
    }, canvas);
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    const step = MOVES[event.key], tile = /** @type {HTMLElement} */ (event.target).closest("button");
    if (!step || !tile) return;
    event.preventDefault();
    const row = this.#tiles.findIndex((tiles) => tiles.includes(tile)), column = this.#tiles[row].indexOf(tile);
    const next = this.#tiles[row + step[0]]?.[Math.min(column + step[1], this.#tiles[row + step[0]].length - 1)];
    next?.focus();
    next?.click();
  }
}

/** The column titles. They are hidden from screen readers because each tile has a label. */
function numbers(heads) {
  return make("div", { class: "numbers", "aria-hidden": "true" }, make("span", {}, "head"),
    ...Array.from({ length: heads }, (_, head) => make("span", {}, head)));
}
