/** @file The model view: overview, metrics, classes, preprocessing, configuration and model card. */

import { card } from "./card.js";
import { byId, facts, make } from "./dom.js";
import { large, percent, short, whole } from "./numbers.js";

const SHARES = /^(top\d+|ece|f1.*|map|accuracy|.*_low|.*_high|knn|linear)$/;
const SHOWN = 300; // maximum number of listed classes; the others are found by the search field

/** @param {any} model reply of /v1/model */
export function showModel(model) {
  const size = model.image_size?.join(" × ");
  byId("model-facts").replaceChildren(facts([
    ["Name", model.name], ["Version", model.version], ["File", model.source], ["Architecture", model.architecture],
    // the parameters of an exported graph are unknown
    ...(model.parameters ? [["Parameters", `${large(model.parameters)} (${whole(model.parameters)})`]] : []),
    ["Input", `${size} pixels, ${model.channels === 1 ? "1 channel" : `${model.channels} channels`}`],
    ["Output", answers(model)],
    ...(model.temperature === null ? [] : [["Temperature", short(model.temperature)]]),
    ...(model.threshold === null ? [] : [["Threshold", short(model.threshold)]]), ...attention(model)]));
  fill("metrics", figures(model.metrics, model.metric_names ?? {}));
  fill("parity", model.parity && facts(flat(model.parity)));
  fill("preprocessing", model.preprocessing && facts(flat(model.preprocessing)));
  fill("numerics", model.numerics && facts(flat(model.numerics)));
  fill("provenance", model.provenance && facts(flat(model.provenance)));
  fill("card", model.card ? card(model.card) : null);
  fill("classes", model.classes.length ? (unnamed(model.classes) ?? classes(model.classes)) : null);
}

function answers({ task, classes: names, multi_label: several }) {
  if (!names.length) return "features only (no head)";
  if (task === "instances") return `objects of ${whole(names.length)} classes with their masks`;
  if (task === "detection") return `objects of ${whole(names.length)} classes`;
  if (task === "panoptic") return `segments of ${whole(names.length)} classes of things and stuff`;
  if (task === "segmentation") return `the class of every pixel, of ${whole(names.length)}`;
  return `${whole(names.length)} classes, ${several ? "multi-label" : "one per image"}`;
}

function attention({ attention: description, colours }) {
  if (!description) return [["Attention", colours ? "none" : "none (use occlusion)"]];
  const heads = description.layers.map((layer) => layer.heads), [least, most] = [Math.min(...heads), Math.max(...heads)];
  return [["Attention", `${heads.length} layers of ${least === most ? least : `${least} to ${most}`} heads`]];
}

/** Fills a section, or hides it if there is no content. */
function fill(name, part) {
  const section = byId(`model-${name}`);
  section.hidden = !part;
  if (part) section.replaceChildren(part);
  /** @type {HTMLElement} */ (section.closest("section")).hidden = !part;
}

/** Returns the metrics by their names; the ends of a 95 % interval stand below their metric. */
function figures(metrics, names) {
  const pairs = Object.entries(metrics ?? {}).filter(([name, value]) => typeof value === "number" && !/_(low|high)$/.test(name));
  if (!pairs.length) return null;
  const written = (name, value) => (SHARES.test(name) ? percent(value) : short(value));
  return make("dl", { class: "figures" }, ...pairs.map(([name, value]) => {
    const [low, high] = [metrics[`${name}_low`], metrics[`${name}_high`]];
    const ends = typeof low === "number" && typeof high === "number" && `95 % interval ${written(name, low)} to ${written(name, high)}`;
    return make("div", {}, make("dt", {}, names[name] ?? name.replaceAll("_", " ")), make("dd", {}, written(name, value)),
      ends && make("dd", { class: "ends" }, ends));
  }));
}

/** Flattens nested values into pairs; the name of a nested value is prefixed with that of its parent. */
function flat(tree, before = "") {
  return Object.entries(tree).flatMap(([key, value]) => {
    const name = `${before}${key.replaceAll("_", " ")}`;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return flat(value, `${name}, `);
    return [/** @type {[string, string]} */ ([name, plain(value)])];
  });
}

function plain(value) {
  if (value === null) return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? short(value) : String(value);
}

/** The text for classes without names, or null if they have names. */
function unnamed(names) {
  if (names.some((name, at) => name !== String(at))) return null;
  return make("p", {}, `The classes have no names, only the numbers 0 to ${names.length - 1}. Start the server with `,
    make("code", {}, "--classes FILE"), " to name them.");
}

/** Lists all classes by number, with a search field. */
function classes(names) {
  const list = make("ol", { class: "classes", tabindex: 0, role: "list" }), count = make("p", { class: "lead", role: "status" });
  const field = make("input", { type: "search", id: "class-field", autocomplete: "off", oninput: show });
  function show() {
    const wanted = field.value.trim().toLowerCase();
    const matches = names.flatMap((name, at) => (name.toLowerCase().includes(wanted) ? [[at, name]] : []));
    list.replaceChildren(...matches.slice(0, SHOWN).map(([at, name]) =>
      make("li", {}, make("span", { class: "number" }, at), make("span", {}, name))));
    const shown = matches.length > SHOWN ? `; the first ${SHOWN} are shown` : "";
    count.textContent = `${wanted ? `${whole(matches.length)} of ` : ""}${whole(names.length)} classes${shown}`;
  }
  show();
  const label = make("label", { for: "class-field" }, "Find a class");
  return make("div", {}, make("p", { class: "find" }, label, field), count, list);
}
