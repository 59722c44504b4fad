/** @file Creating nodes of the page. Strings are always inserted as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {string | number | boolean | null | undefined | EventListener | Record<string, string>} Attribute
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * Makes an element. Attributes that are functions become listeners (`onclick`), `style` takes custom properties, and
 * attributes and children that are false, null or undefined are left out.
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
 * Makes an SVG element.
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
 * Returns the element with this id, which must exist.
 * @param {string} id
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/**
 * Shows a status message below the heading and announces it to screen readers.
 * @param {string} words
 */
export function announce(words) {
  byId("status").textContent = words;
  byId("spoken").textContent = ""; // what was said of an earlier picture
}

/**
 * Announces to screen readers what the page shows visually.
 * @param {string} words
 */
export function speak(words) {
  byId("status").textContent = "";
  byId("spoken").textContent = words;
}

/**
 * Makes an error message: what is wrong, and how to fix it.
 * @param {unknown} error
 * @param {string} [about] name of the file that caused it
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
 * Makes a list of names and values.
 * @param {Iterable<[string, Child]>} pairs
 */
export function facts(pairs) {
  return make("dl", { class: "facts" },
    ...[...pairs].map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/**
 * Makes a button that copies a text.
 * @param {() => string} text returns the text
 * @param {HTMLElement} shown the element that shows the text, selected if the browser denies access to the clipboard
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
      announce("The browser denied access to the clipboard. The text is selected: press Ctrl+C.");
    }
  }
  return button;
}
