/** @file The routes of the server, rendered from its openapi.json. */

import { Api } from "./api.js";
import { inline } from "./card.js";
import { commandBlock, curl } from "./command.js";
import { alarm, announce, byId, make } from "./dom.js";
import { askToken } from "./token.js";

const VERBS = ["get", "post", "put", "delete"];
const KINDS = {
  string: "string", integer: "integer", number: "number", boolean: "boolean", object: "object", null: "null",
  byte: "base64", binary: "file",
};
const DEEPEST = 6; // maximum depth of an example generated from a schema

/**
 * @typedef {{path: string, verb: string, route: any, shared: any[], group: string, id: string}} Route
 * @typedef {Record<string, string>} Names known values of path parameters: the name and version of the model
 */

/** Resolves a `$ref`, relative to the document or to the schema that contains it. */
function resolved(tree, schema) {
  const path = schema?.$ref?.split("/").slice(1);
  return path ? path.reduce((node, key) => node?.[key], tree) : schema;
}

async function start() {
  const api = new Api(askToken, (seconds) => announce(`The server is busy; trying again in ${seconds} s.`));
  const tree = await api.json("openapi.json");
  const { name: model, version } = await api.json("v1/model").catch(() => ({})); // the server may have no model
  const names = model === undefined ? {} : { model, version };
  const routes = routesOf(tree), groups = [...new Set(routes.map(({ group }) => group))];
  const of = (group) => routes.filter((route) => route.group === group);
  byId("routes").replaceChildren(
    make("p", {}, tree.info?.description || "The routes of this server. Errors are JSON with a code, a message and a remedy."),
    make("nav", { class: "contents", "aria-label": "Contents" }, ...groups.map((group) => make("section", {},
      make("h2", {}, group), make("ul", {}, ...of(group).map(linkTo))))),
    ...groups.map((group) => make("section", { class: "group", "aria-label": group }, make("h2", {}, group),
      ...of(group).map((route) => shown(tree, route, names)))));
  announce(`${routes.length} routes`);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

/** @returns {Route[]} */
function routesOf(tree) {
  return Object.entries(tree.paths).flatMap(([path, verbs]) => VERBS.filter((verb) => verb in verbs).map((verb) => ({
    path, verb, route: verbs[verb], shared: verbs.parameters ?? [], group: verbs[verb].tags?.[0] ?? "others",
    id: `${verb}${path.replace(/[^\w]+/g, "-")}`,
  })));
}

const titleOf = ({ verb, path }) => [make("span", { class: `verb ${verb}` }, verb.toUpperCase()),
  make("code", {}, ...path.split(/(?=\/)/).flatMap((part) => [make("wbr"), part]))];

const linkTo = (route) => make("li", {}, make("a", { href: `docs#${route.id}` }, ...titleOf(route)));

/** Joins summary and description of a route. A summary that was generated from a function name, In Capitals, is left out. */
function wordsOf({ summary, description }) {
  const made = /^[A-Z]\w*( [A-Z]\w*)*$/.test(summary ?? "");
  return [made ? "" : summary, description].filter(Boolean).join(". ");
}

/** @param {any} tree @param {Route} entry @param {Names} names */
function shown(tree, entry, names) {
  const { path, verb, route, shared, id } = entry, words = wordsOf(route);
  const parameters = [...shared, ...(route.parameters ?? [])].map((parameter) => resolved(tree, parameter));
  const bodies = Object.entries(resolved(tree, route.requestBody)?.content ?? {});
  return make("article", { class: "route", id },
    make("h3", {}, ...titleOf(entry)), words && make("p", {}, ...inline(words)),
    parameters.length > 0 && table("Parameters", ["name", "in", "type", "description"], parameters.map((parameter) => [
      make("code", {}, parameter.name), parameter.required ? `${parameter.in}, required` : parameter.in,
      takes(tree, parameter.schema), parameter.description ?? ""])),
    bodies.length > 0 && table("Body", ["media type", "content"],
      bodies.map(([type, { schema }]) => [make("code", {}, type), holds({ ...tree, $defs: schema?.$defs }, type, schema)])),
    commandBlock("Example", example(tree, path, verb, bodies, names)),
    answers(tree, route));
}

/** @param {string} title @param {string[]} head @param {(Node | string)[][]} rows */
function table(title, head, rows) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { class: "text", scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", { class: "text" }, cell)))))));
}

/** Describes the content of a body. */
function holds(tree, type, schema) {
  if (type !== "multipart/form-data") return schema?.format === "binary" ? "the bytes of the file" : takes(tree, schema);
  return Object.entries(resolved(tree, schema)?.properties ?? {}).map(([name, property]) =>
    `field ${name}: ${property.type === "array" ? "one or more files" : "one file"}`).join(", ");
}

/** Describes the type of a schema. */
function takes(tree, reference) {
  const schema = resolved(tree, reference) ?? {};
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((option) => takes(tree, option)).filter((word) => word !== "null").join(" or ");
  const start = [undefined, null, ""].includes(schema.default) ? "" : `, default ${schema.default}`;
  if (schema.enum) return schema.enum.join(", ") + start;
  const bounds = [["from", schema.minimum], ["to", schema.maximum]].filter(([, bound]) => bound !== undefined);
  if (schema.type === "object" && schema.properties) {
    return `{ ${Object.entries(schema.properties).map(([name, property]) => `${name}: ${takes(tree, property)}`).join(", ")} }`;
  }
  if (schema.type === "array") {
    const items = takes(tree, schema.items);
    return `list of ${schema.items?.oneOf ? `(${items})` : items.replace(/(string|file|integer|number|object)$/, "$1s")}`;
  }
  const kind = KINDS[schema.format] ?? KINDS[schema.type] ?? "anything";
  return [kind, ...bounds.flat()].join(" ") + start;
}

/** Returns a runnable command, with placeholders in capitals. */
function example(tree, path, verb, bodies, names) {
  const named = (name) => (name in names ? encodeURIComponent(names[name]) : name.toUpperCase());
  const address = path.slice(1).replace(/\{(\w+)[^}]*\}/g, (_, name) => named(name));
  const types = bodies.map(([type]) => type);
  if (types.includes("multipart/form-data")) return curl(address, { file: "cat.jpg" });
  const json = bodies.find(([type]) => type === "application/json");
  const example = json && (json[1].example ?? Object.values(json[1].examples ?? {})[0]?.value ?? sample(tree, json[1].schema));
  const words = json ? ["-H 'Content-Type: application/json'", `-d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`] : [];
  return curl(address, { words: verb === "get" || json ? words : [`-X ${verb.toUpperCase()}`] });
}

/** Returns an example value of a schema. */
function sample(tree, reference, depth = 0) {
  const schema = resolved(tree, reference) ?? {};
  if (depth > DEEPEST) return null;
  const candidates = [schema.example, schema.examples?.[0], schema.default, schema.const, schema.enum?.[0]];
  const value = candidates.find((candidate) => candidate !== undefined);
  if (value !== undefined) return value;
  const first = (schema.anyOf ?? schema.oneOf ?? schema.allOf)?.[0];
  if (first) return sample(tree, first, depth + 1);
  if (schema.properties) {
    return Object.fromEntries(Object.entries(schema.properties).map(([name, property]) => [name, sample(tree, property, depth + 1)]));
  }
  if (schema.type === "array") return [sample(tree, schema.items, depth + 1)];
  return { string: "…", integer: 1, number: 0.5, boolean: true, object: {} }[schema.type] ?? null;
}

/** The responses of a route, collapsed. */
function answers(tree, route) {
  const rows = Object.entries(route.responses ?? {}).map(([status, response]) => {
    const reply = resolved(tree, response), [type, content] = Object.entries(reply?.content ?? {})[0] ?? [];
    const value = content?.example ?? (content?.schema && status < "300" ? sample(tree, content.schema) : null);
    const says = value && typeof value === "object" ? make("code", {}, JSON.stringify(value)) : reply?.description ?? "";
    return [make("code", {}, status), type ?? "", says];
  });
  return rows.length > 0 && make("details", {}, make("summary", {}, "Responses"),
    table("Responses", ["status", "media type", "content"], rows));
}

start().catch((error) => byId("trouble").replaceChildren(alarm(error)));
