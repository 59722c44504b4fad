/** @file One picture: its cached requests to the server, and the maps of its explanations. */

/**
 * @typedef {import("./painter.js").Scene} Scene
 * @typedef {import("./painter.js").Map} Map
 * @typedef {{layer: number | null, heads: (number | string)[] | null, rows: number, columns: number,
 *   reach: [number, number], values: number[][]}} Entry the maps of a layer, one list of values per head
 * @typedef {{name: string | null, prediction: any, method: string, picture: {width: number, height: number, jpeg: string},
 *   box: [number, number, number, number], maps: Entry[]}} Explanation
 * @typedef {{x: number, y: number}} Spot relative position in the box, from 0 to 1
 * @typedef {{row: number, column: number}} Cell
 */

const SMALLEST = 320; // minimum pixels of the longer side of a scene, so that maps are smooth on small pictures

export class Picture {
  /** @type {globalThis.Map<string, Promise<any>>} */
  #asked = new globalThis.Map();
  #leaving = new AbortController();

  /**
   * @param {import("./api.js").Api} api
   * @param {File} file sent unchanged
   */
  constructor(api, file) {
    this.api = api;
    this.file = file;
  }

  /** Cancels the pending requests. */
  close() {
    this.#leaving.abort();
  }

  /**
   * @param {string} query parameters of the request
   * @returns {Promise<any>}
   */
  async predict(query) {
    const answer = await this.#once(`v1/predict?${query}`);
    return answer.predictions[0];
  }

  /**
   * Requests the maps of a method; for attention, those of all layers and heads.
   * @param {string} method
   * @param {Cell | null} [query]
   * @returns {Promise<Explanation>}
   */
  explain(method, query = null) {
    return this.#once(pathOf(method, query));
  }

  /**
   * Whether this explanation is cached or pending.
   * @param {string} method
   * @param {Cell} query
   */
  knows(method, query) {
    return this.#asked.has(pathOf(method, query));
  }

  #once(path) {
    const known = this.#asked.get(path);
    if (known) return known;
    const asked = this.api.send(path, this.file, this.#leaving.signal);
    this.#asked.set(path, asked);
    asked.catch(() => this.#asked.delete(path));
    return asked;
  }
}

/**
 * @param {string} method
 * @param {Cell | null} query
 */
function pathOf(method, query) {
  const more = method === "attention" ? "&layer=all&head=all" : "";
  return `v1/explain?method=${method}${more}${query ? `&query=${query.row},${query.column}` : ""}`;
}

/**
 * Decodes the picture of an explanation.
 * @param {Explanation} explanation
 * @returns {Promise<Scene>}
 */
export async function sceneOf({ picture, box }) {
  const bytes = Uint8Array.from(atob(picture.jpeg), (letter) => letter.charCodeAt(0));
  return drawn(await createImageBitmap(new Blob([bytes], { type: "image/jpeg" })), box);
}

/**
 * Decodes a file in the browser, as a preview until the server replies.
 * @param {File} file
 * @param {number} most maximum pixels of the longer side
 * @returns {Promise<Scene>}
 */
export async function previewOf(file, most = 1024) {
  const bitmap = await createImageBitmap(file);
  const shrink = Math.min(1, most / Math.max(bitmap.width, bitmap.height));
  return drawn(bitmap, [0, 0, bitmap.height, bitmap.width], shrink);
}

/**
 * @param {ImageBitmap} bitmap
 * @param {[number, number, number, number]} box
 * @param {number} shrink
 * @returns {Scene}
 */
function drawn(bitmap, box, shrink = 1) {
  const longer = Math.max(bitmap.width, bitmap.height) * shrink;
  const scale = longer < SMALLEST ? shrink * Math.ceil(SMALLEST / longer) : shrink;
  const width = Math.max(1, Math.round(bitmap.width * scale)), height = Math.max(1, Math.round(bitmap.height * scale));
  const context = contextOf(width, height);
  context.imageSmoothingEnabled = scale <= 1;
  context.drawImage(bitmap, 0, 0, width, height);
  const [down, across] = [height / bitmap.height, width / bitmap.width];
  const inside = /** @type {[number, number, number, number]} */ (box.map((side, at) => side * (at % 2 ? across : down)));
  bitmap.close();
  return { picture: context.getImageData(0, 0, width, height), box: inside };
}

/**
 * Crops a scene to the model's input and resizes it.
 * @param {Scene} scene
 * @param {number} longer pixels of its longer side
 * @returns {Scene}
 */
export function small({ picture, box }, longer) {
  const [top, left, bottom, right] = box, scale = longer / Math.max(bottom - top, right - left);
  const width = Math.max(1, Math.round((right - left) * scale)), height = Math.max(1, Math.round((bottom - top) * scale));
  const from = contextOf(picture.width, picture.height), to = contextOf(width, height);
  from.putImageData(picture, 0, 0);
  to.drawImage(from.canvas, left, top, right - left, bottom - top, 0, 0, width, height);
  return { picture: to.getImageData(0, 0, width, height), box: [0, 0, height, width] };
}

function contextOf(width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
}

/**
 * Returns the maps of a layer. Methods other than attention have one entry for all layers.
 * @param {Explanation} explanation
 * @param {number} layer
 */
export const entryOf = (explanation, layer) =>
  explanation.maps.find((map) => map.layer === null || map.layer === layer) ?? null;

/**
 * Returns the map of one head, or the mean of all heads for null.
 * @param {Entry} entry
 * @param {number | null} head
 * @returns {Map}
 */
export function mapOf({ rows, columns, reach, values }, head) {
  if (head !== null) return { rows, columns, reach, values: values[Math.min(head, values.length - 1)] };
  const mean = values[0].map((_, at) => values.reduce((sum, head) => sum + head[at], 0) / values.length);
  return { rows, columns, reach, values: mean };
}

/**
 * Returns the cell of a map at a position in the box.
 * @param {{rows: number, columns: number, reach: [number, number]}} map
 * @param {Spot} spot
 * @returns {Cell}
 */
export function cellAt({ rows, columns, reach }, { x, y }) {
  const inside = (share, cells, far) => Math.min(Math.max(Math.floor((share * cells) / far), 0), cells - 1);
  return { row: inside(y, rows, reach[0]), column: inside(x, columns, reach[1]) };
}

/**
 * Returns the centre of a cell.
 * @param {{rows: number, columns: number, reach: [number, number]}} map
 * @param {Cell} cell
 * @returns {Spot}
 */
export function spotOf({ rows, columns, reach }, { row, column }) {
  return { x: ((column + 0.5) / columns) * reach[1], y: ((row + 0.5) / rows) * reach[0] };
}
