/** @file The ways a picture comes in: dropped or pasted anywhere, chosen, photographed. */

import { takePhotograph } from "./camera.js";
import { announce, make } from "./dom.js";

/**
 * Listens for pictures on the whole page.
 * @param {(files: File[], target: Element | null) => void} onFiles hears of them, and of the element they were dropped on
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
      announce("The clipboard holds no picture.");
    }
  });
}

/**
 * A button to choose a picture.
 * @param {string} words
 * @param {(files: File[]) => void} onFiles
 * @param {boolean} several whether two may be chosen at one time
 */
export function chooseButton(words, onFiles, several = false) {
  const choose = input({ multiple: several }, onFiles);
  return make("div", { class: "intake" }, make("button", { type: "button", onclick: () => choose.click() }, words), choose);
}

/**
 * A button to photograph one.
 * @param {(files: File[]) => void} onFiles
 */
export function photographButton(onFiles) {
  const phone = input({ capture: "environment" }, onFiles);
  const take = () => photograph(phone, onFiles);
  return make("div", { class: "intake" }, make("button", { type: "button", class: "quiet", onclick: take }, "Take a photograph"), phone);
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

/** A phone has an app for it; a desk shows what its camera sees. */
async function photograph(phone, onFiles) {
  const handheld = matchMedia("(pointer: coarse)").matches;
  if (handheld || !navigator.mediaDevices?.getUserMedia) return phone.click();
  const file = await takePhotograph();
  if (file) onFiles([file]);
}
