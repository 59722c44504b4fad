/** @file The routes of the server, as its own openapi.json tells them. */

import { Api } from "./api.js";
import { inline } from "./card.js";
import { commandBlock, curl } from "./command.js";
import { alarm, announce, byId, make } from "./dom.js";
import { askToken } from "./token.js";

const VERBS = ["get", "post", "put", "delete"];
const DEEPEST = 6; // levels of an example that a schema is drawn out to

/** What a `$ref` points to. */
function resolved(tree, schema) {
  const path = schema?.$ref?.split("/").slice(1);
  return path ? path.reduce((found, key) => found?.[key], tree) : schema;
}

function start() {
  const api = new Api(askToken, (seconds) => announce(`The server is busy; trying again in ${seconds} s.`));
  return api.json("openapi.json").then((tree) => {
    const routes = Object.entries(tree.paths).flatMap(([path, verbs]) =>
      VERBS.filter((verb) => verb in verbs).map((verb) => ({ path, verb, route: verbs[verb], shared: verbs.parameters ?? [] })));
    const groups = [...new Set(routes.map(({ route }) => route.tags?.[0] ?? "others"))];
    byId("routes").replaceChildren(
      make("p", {}, tree.info?.description || "Every route of this server. Errors are JSON with a code, a message and a remedy."),
      ...groups.map((group) => make("section", { class: "group", "aria-label": group }, make("h2", {}, group),
        ...routes.filter(({ route }) => (route.tags?.[0] ?? "others") === group).map((each) => shown(tree, each)))));
    announce(`${routes.length} routes`);
  });
}

function shown(tree, { path, verb, route, shared }) {
  const parameters = [...shared, ...(route.parameters ?? [])].map((each) => resolved(tree, each));
  const bodies = Object.entries(resolved(tree, route.requestBody)?.content ?? {});
  return make("article", { class: "route" },
    make("h3", {}, make("span", { class: `verb ${verb}` }, verb.toUpperCase()), make("code", {}, path)),
    make("p", {}, ...inline([route.summary, route.description].filter(Boolean).join(". "))),
    parameters.length > 0 && table("Parameters", ["name", "where", "takes", "what it is"], parameters.map((each) => [
      make("code", {}, each.name), each.required ? `${each.in}, needed` : each.in,
      takes(tree, each.schema), each.description ?? ""])),
    bodies.length > 0 && table("Body", ["type", "takes"],
      bodies.map(([type, { schema }]) => [make("code", {}, type), takes(tree, schema)])),
    commandBlock("Example", example(tree, path, verb, bodies)),
    answers(tree, route));
}

/** @param {string} title @param {string[]} head @param {(Node | string)[][]} rows */
function table(title, head, rows) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { class: "text", scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", { class: "text" }, cell)))))));
}

/** In words, what a schema takes. */
function takes(tree, given) {
  const schema = resolved(tree, given) ?? {};
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((each) => takes(tree, each)).filter((word) => word !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(", ");
  const bounds = [["from", schema.minimum], ["to", schema.maximum]].filter(([, bound]) => bound !== undefined);
  const start = schema.default === undefined || schema.default === null ? "" : `, else ${schema.default}`;
  if (schema.type === "object" && schema.properties) {
    return `object of ${Object.entries(schema.properties).map(([name, each]) => `${name} (${takes(tree, each)})`).join(", ")}`;
  }
  const kind = schema.type === "array" ? `list of ${takes(tree, schema.items)}` : schema.format ?? schema.type ?? "anything";
  return [kind, ...bounds.flat()].join(" ") + start;
}

/** A command that works as it stands, but for the names in capitals. */
function example(tree, path, verb, bodies) {
  const address = path.slice(1).replace(/\{(\w+)[^}]*\}/g, (_, name) => name.toUpperCase());
  const types = bodies.map(([type]) => type);
  if (types.includes("multipart/form-data")) return curl(address, { file: "cat.jpg" });
  const json = bodies.find(([type]) => type === "application/json");
  const given = json && (json[1].example ?? Object.values(json[1].examples ?? {})[0]?.value ?? sample(tree, json[1].schema));
  const words = json ? ["-H 'Content-Type: application/json'", `-d '${JSON.stringify(given).replaceAll("'", "'\\''")}'`] : [];
  return curl(address, { words: verb === "get" || json ? words : [`-X ${verb.toUpperCase()}`] });
}

/** A value that a schema allows. */
function sample(tree, given, depth = 0) {
  const schema = resolved(tree, given) ?? {};
  if (depth > DEEPEST) return null;
  const told = [schema.example, schema.examples?.[0], schema.default, schema.const, schema.enum?.[0]];
  const value = told.find((each) => each !== undefined);
  if (value !== undefined) return value;
  const first = (schema.anyOf ?? schema.oneOf ?? schema.allOf)?.[0];
  if (first) return sample(tree, first, depth + 1);
  if (schema.properties) {
    return Object.fromEntries(Object.entries(schema.properties).map(([name, each]) => [name, sample(tree, each, depth + 1)]));
  }
  if (schema.type === "array") return [sample(tree, schema.items, depth + 1)];
  return { string: "…", integer: 1, number: 0.5, boolean: true, object: {} }[schema.type] ?? null;
}

/** What comes back, folded away. */
function answers(tree, route) {
  const rows = Object.entries(route.responses ?? {}).map(([status, each]) => {
    const found = resolved(tree, each), [type, content] = Object.entries(found?.content ?? {})[0] ?? [];
    const value = content?.example ?? (content?.schema && status < "300" ? sample(tree, content.schema) : null);
    const says = value && typeof value === "object" ? make("code", {}, JSON.stringify(value)) : found?.description ?? "";
    return [make("code", {}, status), type ?? "", says];
  });
  return rows.length > 0 && make("details", {}, make("summary", {}, "What comes back"),
    table("Replies", ["status", "type", "what it says"], rows));
}

start().catch((error) => byId("trouble").replaceChildren(alarm(error)));
