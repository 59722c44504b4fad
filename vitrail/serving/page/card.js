/** @file Rendering of model cards: a subset of Markdown as nodes. Unsupported syntax is shown as text. */

import { make } from "./dom.js";

/**
 * @param {string} markdown
 * @returns {HTMLElement}
 */
export function card(markdown) {
  const body = markdown.replace(/\r/g, "").replace(/^---\n[\s\S]*?\n---\n/, "");
  const element = make("div", { class: "card" });
  for (const block of blocksOf(body)) element.append(...nodesOf(block));
  return element;
}

/** Splits text at empty lines; a fenced code block is one block. */
function blocksOf(text) {
  return text.split(/^(```[^\n]*\n[\s\S]*?^```$)/m)
    .flatMap((part) => (part.startsWith("```") ? [part] : part.split(/\n{2,}/)))
    .map((part) => part.replace(/^\n+|\s+$/g, "")).filter(Boolean);
}

function nodesOf(block) {
  if (block.startsWith("```")) {
    return [make("pre", { tabindex: 0 }, make("code", {}, block.replace(/^.*\n/, "").replace(/\n?```$/, "")))];
  }
  const lines = block.split("\n");
  const heading = lines[0].match(/^(#{1,6}) (.*)/);
  if (heading) {
    const rest = lines.slice(1).join("\n");
    // h1 and h2 are the page's own headings
    const tag = heading[1].length < 3 ? "h3" : "h4";
    return [make(tag, {}, ...inline(heading[2])), ...(rest ? nodesOf(rest) : [])];
  }
  if (lines.length > 1 && /^\|?[\s:|-]+$/.test(lines[1]) && lines[0].includes("|")) return [table(lines)];
  if (lines.every((line) => /^([-*]|\d+\.) |^ /.test(line))) return [list(lines)];
  return [make("p", {}, ...inline(lines.join(" ")))];
}

function table([head, rule, ...rows]) {
  const cells = (line) => line.replace(/^\s*\||\|\s*$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const right = cells(rule).map((cell) => cell.endsWith(":") && !cell.startsWith(":"));
  const row = (tag, line) => make("tr", {},
    ...cells(line).map((cell, at) => make(tag, { class: right[at] ? null : "text" }, ...inline(cell))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map((line) => row("td", line)))));
}

function list(lines) {
  const items = lines.reduce((texts, line) => {
    const start = line.match(/^(?:[-*]|\d+\.) (.*)/);
    return start ? [...texts, start[1]] : [...texts.slice(0, -1), `${texts.at(-1) ?? ""} ${line.trim()}`];
  }, /** @type {string[]} */ ([]));
  return make("ul", {}, ...items.map((item) => make("li", {}, ...inline(item))));
}

/**
 * Renders `code`, **strong** and [text](address). Addresses are shown as text, not as links.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function inline(text) {
  const parts = text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)\s]+\))/);
  return parts.filter(Boolean).map((part) => {
    if (/^`.+`$/.test(part)) return make("code", {}, part.slice(1, -1));
    if (/^\*\*.+\*\*$/.test(part)) return make("strong", {}, part.slice(2, -2));
    const link = part.match(/^\[(.+)\]\((.+)\)$/);
    return link ? `${link[1]} (${link[2]})` : part.replace(/\\([\\`*_{}[\]()#+.!|<>~-])/g, "$1");
  });
}
