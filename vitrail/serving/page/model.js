/** @file The model: what it is, its classes, how pictures reach it, what was measured of it. */

import { card } from "./card.js";
import { byId, facts, make } from "./dom.js";
import { large, percent, short, whole } from "./numbers.js";

const SHARES = /^(top\d+|ece|brier|f1.*|map|accuracy|.*_low|.*_high|knn|linear)$/;
const SHOWN = 300; // classes at one time; the field finds the others

/** @param {any} model as /v1/model tells */
export function showModel(model) {
  const size = model.image_size?.join(" × ");
  byId("model-facts").replaceChildren(facts([
    ["Name", model.name], ["Version", model.version], ["File", model.source], ["Architecture", model.architecture],
    // those of an exported graph are not counted
    ...(model.parameters ? [["Parameters", `${large(model.parameters)} (${whole(model.parameters)})`]] : []),
    ["Takes", `${size} pixels, ${model.channels === 1 ? "1 channel" : `${model.channels} channels`}`],
    ["Answers", answers(model)], ["Temperature", short(model.temperature ?? 1)], ...attention(model.attention)]));
  fill("metrics", figures(model.metrics));
  fill("parity", model.parity && facts(flat(model.parity)));
  fill("preprocessing", model.preprocessing && facts(flat(model.preprocessing)));
  fill("numerics", model.numerics && facts(flat(model.numerics)));
  fill("provenance", model.provenance && facts(flat(model.provenance)));
  fill("card", model.card ? card(model.card) : null);
  fill("classes", model.classes.length ? (unnamed(model.classes) ?? classes(model.classes)) : null);
}

function answers({ classes: names, multi_label: several }) {
  if (!names.length) return "features only: it has no head";
  return `${whole(names.length)} classes, ${several ? "each of them yes or no" : "one for an image"}`;
}

function attention(description) {
  if (!description) return [["Attention", "none: occlusion shows what counts"]];
  const heads = description.layers.map((layer) => layer.heads), [least, most] = [Math.min(...heads), Math.max(...heads)];
  return [["Attention", `${heads.length} layers of ${least === most ? least : `${least} to ${most}`} heads`]];
}

/** Puts a part into its section; a section without any is not there. */
function fill(name, part) {
  const section = byId(`model-${name}`);
  section.hidden = !part;
  if (part) section.replaceChildren(part);
  /** @type {HTMLElement} */ (section.parentElement).hidden = !part;
}

function figures(metrics) {
  const pairs = Object.entries(metrics ?? {}).filter(([, value]) => typeof value === "number");
  if (!pairs.length) return null;
  return make("dl", { class: "figures" }, ...pairs.map(([name, value]) => make("div", {},
    make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, SHARES.test(name) ? percent(value) : short(value)))));
}

/** Nested facts as pairs; the name of what is inside stands behind its own. */
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

/** What there is to say of classes that are numbers and nothing else. */
function unnamed(names) {
  if (names.some((name, at) => name !== String(at))) return null;
  return make("p", {}, `They have no names, only the numbers 0 to ${names.length - 1}. Start the server with `,
    make("code", {}, "--classes FILE"), " to give them names.");
}

/** All classes by number, with a field that finds some. */
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
