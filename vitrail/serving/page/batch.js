/** @file Many images: a table with a thumbnail and the prediction of each, which is saved as CSV. */

import { announce, byId, make, speak } from "./dom.js";
import { percent, whole } from "./numbers.js";

const TOGETHER = 4; // requests at a time
const MOST = 1000; // images; `vitrail predict` takes any number
const SIDE = 96; // of a thumbnail, in pixels
const PICTURE = /\.(jpe?g|jpe|jfif|png|webp|bmp|gif|tiff?|ppm|pgm|pbm|pnm|heic|heif|avif)$/i;

/** Whether a file is an image by its type or its name. */
export const isPicture = ({ name, type }) => type.startsWith("image/") || PICTURE.test(name);

/** Returns the name of a file with the folders that it was dropped or chosen with. */
const pathOf = (file) => file.path ?? (file.webkitRelativePath || file.name);

export class Batch {
  #turn = 0;
  /** @type {{path: string, label: string, score: number | null, error: string, unknown?: boolean}[]} */
  #rows = [];

  /**
   * @param {import("./api.js").Api} api
   * @param {any} model reply of /v1/model
   * @param {(file: File) => void} onOpen called with the image that is to be looked at
   */
  constructor(api, model, onOpen) {
    Object.assign(this, { api, model, onOpen });
    this.body = make("tbody");
    this.lead = make("p", { class: "lead" });
    const scored = model.task === "classification" || !model.colours;
    const head = ["", "image", model.colours ? "what is on it" : "prediction", ...(scored ? ["probability"] : [])];
    this.scored = scored;
    byId("batch").replaceChildren(
      make("h2", { id: "batch-title" }, "Images"), this.lead,
      make("div", { class: "buttons" },
        make("button", { type: "button", onclick: () => this.#save() }, "Save as CSV"),
        make("button", { type: "button", class: "quiet", onclick: () => this.close() }, "Close the table")),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "batch-title" }, make("table", {},
        make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col", class: name === "probability" ? "" : "text" },
          name || make("span", { class: "unseen" }, "Thumbnail"))))),
        this.body)));
  }

  /** @param {File[]} files */
  async open(files) {
    const turn = ++this.#turn, pictures = files.filter(isPicture), shown = pictures.slice(0, MOST);
    const others = files.length - pictures.length;
    const notes = [
      others && `${whole(others)} ${others === 1 ? "file" : "files"} of other types left out`,
      pictures.length > MOST && `the first ${whole(MOST)} of ${whole(pictures.length)}; vitrail predict takes any number`,
    ].filter(Boolean);
    this.#rows = [];
    this.body.replaceChildren();
    byId("batch").hidden = false;
    const waiting = [...shown.entries()];
    const cells = shown.map((file) => this.#row(file));
    let done = 0;
    const work = async () => {
      for (let next = waiting.shift(); next && turn === this.#turn; next = waiting.shift()) {
        const [place, file] = next;
        const row = await this.#predict(file);
        if (turn !== this.#turn) return;
        this.#rows[place] = row;
        cells[place](row);
        this.lead.textContent = `${whole(++done)} of ${whole(shown.length)} images${notes.length ? ` (${notes.join("; ")})` : ""}. Click an image to look at it.`;
      }
    };
    this.lead.textContent = `${whole(shown.length)} images …`;
    await Promise.all(Array.from({ length: TOGETHER }, work));
    if (turn !== this.#turn) return;
    const wrong = this.#rows.filter(({ error }) => error).length;
    speak(`${whole(shown.length - wrong)} images are predicted${wrong ? `, ${whole(wrong)} could not be read` : ""}.`);
  }

  close() {
    this.#turn += 1;
    byId("batch").hidden = true;
    this.body.replaceChildren();
  }

  /** Adds the row of a file; returns the function that shows its prediction. */
  #row(file) {
    const path = pathOf(file), open = () => this.onOpen(file);
    const thumbnail = make("button", { type: "button", class: "thumbnail", onclick: open, "aria-label": `Look at ${path}` });
    const label = make("td", { class: "text" }, "…"), score = this.scored && make("td");
    this.body.append(make("tr", {}, make("td", { class: "text" }, thumbnail), make("td", { class: "text key" }, path), label, score));
    return (row) => {
      draw(file, thumbnail);
      label.replaceChildren(row.error ? make("span", { class: "wrong" }, row.error) : row.label,
        ...(row.unknown ? [make("span", { class: "wrong" }, " unlike the training images")] : []));
      if (score) score.textContent = row.score === null ? "" : percent(row.score);
    };
  }

  async #predict(file) {
    const path = pathOf(file);
    try {
      const query = this.scored ? "?top=1" : this.model.task === "segmentation" ? `?side=${SIDE}` : "";
      const { predictions } = await this.api.send(`v1/predict${query}`, file);
      return { path, ...summaryOf(this.model, predictions[0]), error: "" };
    } catch (error) {
      const { message } = /** @type {Error} */ (error);
      return { path, label: "", score: null, error: message };
    }
  }

  #save() {
    const kept = this.#rows.filter(Boolean), fitted = kept.some(({ unknown }) => unknown !== undefined);
    const rows = kept.map(({ path, label, score, error, unknown }) => [path, label, score ?? "", ...(fitted ? [unknown ?? ""] : []), error]);
    const lines = [["path", "label", "score", ...(fitted ? ["unknown"] : []), "error"], ...rows].map((row) => row.map(quote).join(","));
    const href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    make("a", { href, download: "predictions.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
    announce("");
  }
}

/** Returns one line on a reply: the best class, the objects or segments by class, or the largest classes of pixels. */
function summaryOf({ task, threshold }, reply) {
  if (task === "segmentation") {
    return { label: reply.classes.slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", "), score: null };
  }
  const found = reply.objects ?? reply.segments;
  if (!found) return { label: reply.label, score: reply.score, unknown: reply.unknown };
  const counts = new Map();
  for (const { label, score } of found) if (score >= (threshold ?? 0)) counts.set(label, (counts.get(label) ?? 0) + 1);
  return { label: [...counts].map(([label, count]) => `${whole(count)} ${label}`).join(", ") || `no ${reply.objects ? "objects" : "segments"}`, score: null };
}

/** Quotes a field of CSV. One that a spreadsheet would compute begins with an apostrophe. */
function quote(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Draws a thumbnail, which keeps no decoded picture. */
async function draw(file, button) {
  try {
    const bitmap = await createImageBitmap(file, { resizeHeight: SIDE, resizeQuality: "medium" });
    const canvas = make("canvas", { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
    bitmap.close();
    button.replaceChildren(canvas);
  } catch {
    button.replaceChildren("?"); // the browser cannot decode the file, which the server may
  }
}
