/** @file Image input: drag and drop, paste, file chooser and camera. */

import { takePhotograph } from "./camera.js";
import { announce, make } from "./dom.js";

/**
 * Listens for files that are dropped or pasted anywhere on the page.
 * @param {(files: File[], target: Element | null) => void} onFiles called with the files and the drop target
 */
export function listen(onFiles) {
  const { body } = document;
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    body.classList.remove("dropping");
    onFiles([...(event.dataTransfer?.files ?? [])], /** @type {Element} */ (event.target));
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) {
      event.preventDefault();
      onFiles(files, null);
    } else if (!(event.target instanceof HTMLInputElement)) {
      announce("There is no image in the clipboard.");
    }
  });
}

/**
 * Makes a button to choose image files.
 * @param {string} words
 * @param {(files: File[]) => void} onFiles
 * @param {boolean} several whether more than one file can be chosen
 */
export function chooseButton(words, onFiles, several = false) {
  const choose = input({ multiple: several }, onFiles);
  return make("div", { class: "intake" }, make("button", { type: "button", onclick: () => choose.click() }, words), choose);
}

/**
 * Makes a button to take a photograph.
 * @param {(files: File[]) => void} onFiles
 */
export function photographButton(onFiles) {
  const phone = input({ capture: "environment" }, onFiles);
  const take = () => photograph(phone, onFiles);
  return make("div", { class: "intake" }, make("button", { type: "button", class: "quiet", onclick: take }, "Take a photo"), phone);
}

function input(attributes, onFiles) {
  const element = make("input", {
    type: "file", accept: "image/*", hidden: true, ...attributes,
    onchange: () => {
      const files = [...(element.files ?? [])];
      element.value = ""; // so that the same file can be chosen again
      if (files.length) onFiles(files);
    },
  });
  return element;
}

/** Opens the camera app on phones, and the camera dialog of this page elsewhere. */
async function photograph(phone, onFiles) {
  const handheld = matchMedia("(pointer: coarse)").matches;
  if (handheld || !navigator.mediaDevices?.getUserMedia) return phone.click();
  const file = await takePhotograph();
  if (file) onFiles([file]);
}
