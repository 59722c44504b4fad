/** @file Requests of the page as curl commands. */

import { copyButton, make } from "./dom.js";

/** @param {string} word to be quoted for a shell */
export const quoted = (word) => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Quotes a file name for curl's -F, where a comma or a semicolon would end it. */
const formName = (name) => (/[,;"\\]/.test(name) ? `"${name.replace(/[\\"]/g, "\\$&")}"` : name);

/**
 * A curl command.
 * @param {string} path relative to the page
 * @param {{file?: string, token?: boolean, out?: string, words?: string[]}} [options]
 */
export function curl(path, { file, token, out, words = [] } = {}) {
  return ["curl",
    ...(token ? ['-H "Authorization: Bearer $VITRAIL_TOKEN"'] : []),
    ...(file === undefined ? [] : [`-F ${quoted(`file=@${formName(file)}`)}`]),
    ...words, quoted(new URL(path, document.baseURI).href),
    ...(out ? [`-o ${quoted(out)}`] : [])].join(" ");
}

/**
 * A command with a button that copies it.
 * @param {string} title
 * @param {string} command
 */
export function commandBlock(title, command) {
  const code = make("code", {}, command);
  return make("div", { class: "command" },
    make("div", { class: "above" }, make("h3", {}, title), copyButton(() => command, code)),
    make("pre", { tabindex: 0 }, code));
}
