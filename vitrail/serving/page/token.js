/** @file The dialog that asks for the server's token. */

import { byId } from "./dom.js";

/**
 * Asks for the token. Returns an empty string if the user cancels.
 * @param {boolean} again whether a previous token was refused
 * @returns {Promise<string>}
 */
export function askToken(again) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("token")), field = /** @type {HTMLInputElement} */ (byId("token-field"));
  byId("token-again").hidden = !again;
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (value) => { dialog.close(); resolve(value); };
    byId("token-form").onsubmit = (event) => { event.preventDefault(); end(field.value.trim()); };
    byId("token-leave").onclick = () => end("");
    dialog.oncancel = () => end("");
  });
}
