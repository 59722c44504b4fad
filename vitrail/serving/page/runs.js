/** @file The runs view: a table of the runs, and live curves of the selected ones. */

import { charts, COLOURS, legend } from "./curves.js";
import { alarm, byId, make, speak } from "./dom.js";
import { ago, percent, short, whole } from "./numbers.js";

const EVERY = 5000; // milliseconds between two updates of the table
const GOING_ON = ["starting", "running"];
const MOST = 6000; // maximum number of rows in memory per run

/**
 * @typedef {{name: string, colour: string, dash: boolean, rows: Record<string, number | null>[],
 *   columns: Record<string, {chart: string, label: string}>, known: boolean, stop: AbortController}} Watched
 */

const newestFirst = (runs) => [...runs].sort((a, b) => b.updated - a.updated);
const hasRows = (run) => Object.keys(run.last).length > 0;

export class Runs {
  /** @type {Map<string, Watched>} the selected runs */
  #watched = new Map();
  /** @type {any[]} */
  #runs = [];
  #drawing = false;
  #chosen = false; // whether the user has changed the selection

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.section = byId("runs");
    this.rows = byId("runs-rows");
    setInterval(() => this.#look(), EVERY);
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** @param {any[]} runs reply of /v1/runs */
  start(runs) {
    this.#show(runs);
    const newest = newestFirst(runs).find(hasRows);
    if (newest) this.#tick(newest.name, true);
    this.#draw();
  }

  async #look() {
    if (document.hidden || this.section.hidden) return;
    try {
      const { runs } = await this.api.json("v1/runs");
      const begun = this.#chosen ? null : newestFirst(runs).find((run) => this.#begins(run));
      this.#show(runs);
      if (begun) this.#only(begun.name);
      byId("runs-trouble").replaceChildren();
    } catch (error) {
      byId("runs-trouble").replaceChildren(alarm(error));
    }
  }

  /** Whether a run has started, or written its first rows, since the last update. */
  #begins(run) {
    const before = this.#runs.find(({ name }) => name === run.name);
    return GOING_ON.includes(run.state) && (!before || (hasRows(run) && !hasRows(before)));
  }

  #show(runs) {
    this.#runs = runs;
    byId("runs-none").hidden = runs.length > 0;
    byId("runs-table").hidden = runs.length === 0;
    const held = document.activeElement?.closest("[data-key]")?.getAttribute("data-key");
    this.rows.replaceChildren(...newestFirst(runs).map((run) => this.#row(run)));
    // restore the keyboard focus after the table was rebuilt
    if (held) [...this.rows.querySelectorAll("[data-key]")].find((row) => row.getAttribute("data-key") === held)?.focus();
  }

  #row(run) {
    const watched = this.#watched.get(run.name);
    const tick = make("input", {
      type: "checkbox", checked: Boolean(watched), "aria-label": `Curves of ${run.name}`, "data-key": `tick ${run.name}`,
      onchange: () => { this.#chosen = true; this.#tick(run.name, tick.checked); },
    });
    const only = make("button", {
      type: "button", class: "name", "data-key": `name ${run.name}`,
      onclick: () => { this.#chosen = true; this.#only(run.name); },
    }, run.name);
    const kind = `swatch ${watched?.colour ?? "none"}${watched?.dash ? " dash" : ""}`;
    const swatch = make("span", { class: kind, "aria-hidden": "true" });
    const done = run.steps ? run.step / run.steps : 0, steps = run.steps ? ` / ${whole(run.steps)}` : "";
    return make("tr", {}, make("td", { class: "text tick" }, tick),
      make("th", { scope: "row", class: "text run" }, swatch, only),
      make("td", { class: "text" }, make("span", { class: `state ${run.state}` }, run.state), left(run.seconds_left)),
      make("td", { class: "bar", style: { "--share": String(done) } }, `${whole(run.step)}${steps}`),
      make("td", { class: "figure" }, best(run.best)), make("td", { class: "text more" }, run.model ?? ""),
      make("td", { class: "text more" }, run.data ?? ""), make("td", { class: "when" }, ago(run.updated)));
  }

  #only(name) {
    [...this.#watched.keys()].filter((watched) => watched !== name).forEach((watched) => this.#forget(watched));
    this.#tick(name, true);
  }

  #tick(name, wanted) {
    if (!wanted) this.#forget(name);
    else if (!this.#watched.has(name)) this.#watch(name);
    this.#show(this.#runs);
    this.#draw();
    if (!this.section.hidden) speak(wanted ? `The curves of ${name} are shown.` : `The curves of ${name} are hidden.`);
  }

  #forget(name) {
    this.#watched.get(name)?.stop.abort();
    this.#watched.delete(name);
  }

  /** Fetches the rows so far, then follows the run until it ends or is deselected. */
  async #watch(name) {
    const taken = [...this.#watched.values()].map((run) => run.colour);
    const colour = COLOURS.find((colour) => !taken.includes(colour)) ?? COLOURS[this.#watched.size % COLOURS.length];
    /** @type {Watched} */
    const run = { name, colour, dash: taken.includes(colour), rows: [], columns: {}, known: false, stop: new AbortController() };
    this.#watched.set(name, run);
    const { signal } = run.stop, path = `v1/runs/${encodeURIComponent(name)}`;
    try {
      const history = await this.api.json(`${path}/metrics`, { signal });
      Object.assign(run, { rows: history.rows, columns: history.columns, known: true });
      this.#soon();
      if (!GOING_ON.includes(history.state)) return;
      for await (const event of this.api.events(`${path}/events?at=${history.at}`, signal)) {
        if (event.event === "row") await this.#take(run, event.data, path);
      }
      this.#look();
    } catch (error) {
      if (!signal.aborted) byId("runs-trouble").replaceChildren(alarm(error));
    }
  }

  async #take(run, row, path) {
    run.rows.push(row);
    if (run.rows.length > MOST) run.rows = run.rows.filter((_, at) => at % 2 === 0 || at > MOST - 100);
    if (Object.keys(row).some((column) => !(column in run.columns))) {
      run.columns = (await this.api.json(`${path}/metrics?after=${row.step}`)).columns;
    }
    this.#soon();
  }

  /** Redraws at most once per animation frame. */
  #soon() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => { this.#drawing = false; this.#draw(); });
  }

  /** Returns why a run has no curves. */
  #nothing(name) {
    const study = this.#runs.find((run) => run.name === name)?.command === "study";
    return study ? "a study has no curves; its figures are in report.html in its folder." : "no steps yet.";
  }

  #draw() {
    const watched = [...this.#watched.values()];
    const empty = watched.filter((run) => run.known && !run.rows.length);
    byId("runs-empty").replaceChildren(...empty.map(({ name }) => make("p", { class: "lead" }, `${name}: ${this.#nothing(name)}`)));
    byId("runs-keys").replaceChildren(...legend(watched));
    byId("runs-charts").replaceChildren(...charts(watched));
    byId("runs-hint").hidden = watched.length > 0;
  }
}

/** Returns the time left of a study. */
function left(seconds) {
  if (!seconds) return "";
  const minutes = seconds / 60;
  return `, ${minutes < 90 ? `${Math.ceil(minutes)} min` : `${short(minutes / 60)} h`} left`;
}

function best(figure) {
  if (!figure) return "";
  const name = figure.name.replace(/^val_/, "").replaceAll("_", " ");
  return `${name} ${figure.name.startsWith("psnr") ? `${short(figure.value)} dB` : percent(figure.value)}`;
}
