/** @file Nodes of the page. Words that come from outside enter as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {string | number | boolean | null | undefined | EventListener | Record<string, string>} Attribute
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * An element. Attributes that are functions are listeners (`onclick`), `style` takes custom properties, and what is
 * false, null or undefined is left out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, Attribute>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/**
 * The same for drawings.
 * @param {string} tag
 * @param {Record<string, Attribute>} [attributes]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function draw(tag, attributes = {}, ...children) {
  return dress(/** @type {SVGElement} */ (document.createElementNS(SVG, tag)), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, item] of Object.entries(value)) node.style.setProperty(key, item);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return node;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

/**
 * The element of the page with this id; it is known to be there.
 * @param {string} id
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/**
 * Says what goes on, below the heading and to screen readers.
 * @param {string} words
 */
export function announce(words) {
  byId("status").textContent = words;
}

/**
 * Says to screen readers what the page shows already.
 * @param {string} words
 */
export function speak(words) {
  byId("status").textContent = "";
  byId("spoken").textContent = words;
}

/**
 * An error as a person reads it: what is wrong, and what to do.
 * @param {unknown} error
 * @param {string} [about] the file that it is about
 */
export function alarm(error, about) {
  const { message, remedy } = /** @type {{message: string, remedy?: string}} */ (error);
  return make("div", { class: "alarm", role: "alert" }, about && make("p", { class: "key" }, about),
    make("p", { class: "claim" }, sentence(message)), remedy && make("p", {}, sentence(remedy)));
}

/** @param {string} words */
function sentence(words) {
  const trimmed = words.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?…]$/.test(trimmed) ? "" : ".");
}

/**
 * A list of facts: a name and a value each.
 * @param {Iterable<[string, Child]>} pairs
 */
export function facts(pairs) {
  return make("dl", { class: "facts" },
    ...[...pairs].map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/**
 * A button that copies what `text` gives when it is pressed.
 * @param {() => string} text
 * @param {HTMLElement} shown the element that shows it, selected where the browser does not let a page copy
 */
export function copyButton(text, shown) {
  const button = make("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      announce("Copied.");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection()?.selectAllChildren(shown);
      announce("The browser does not let this page copy: the text is selected, press Ctrl+C.");
    }
  }
  return button;
}
