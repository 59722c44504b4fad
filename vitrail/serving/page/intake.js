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
    const target = /** @type {Element} */ (event.target);
    filesOf(event.dataTransfer).then((files) => onFiles(files, target));
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
 * Makes a button to choose a folder; its images come with their folders in their names.
 * @param {string} words
 * @param {(files: File[]) => void} onFiles
 */
export function chooseFolderButton(words, onFiles) {
  const choose = input({ webkitdirectory: true }, onFiles);
  return make("div", { class: "intake" }, make("button", { type: "button", class: "quiet", onclick: () => choose.click() }, words), choose);
}

/**
 * Returns the files that were dropped, also those in folders, in the order of their names.
 * @param {DataTransfer | null} data
 * @returns {Promise<File[]>}
 */
async function filesOf(data) {
  const entries = [...(data?.items ?? [])].map((item) => item.webkitGetAsEntry?.()), files = [...(data?.files ?? [])];
  if (!entries.some((entry) => entry?.isDirectory)) return files;
  return (await Promise.all(entries.map((entry, at) => (entry ? walk(entry) : [files[at]])))).flat();
}

/** Returns the files of an entry of the file system; `path` of a file names its folders. */
async function walk(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [Object.assign(file, { path: entry.fullPath.replace(/^\//, "") })];
  }
  const reader = entry.createReader(), inside = [];
  for (let some; !some || some.length; ) { // a browser gives a hundred at a time
    some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    inside.push(...some);
  }
  inside.sort((one, other) => one.name.localeCompare(other.name, "en"));
  return (await Promise.all(inside.map(walk))).flat();
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
