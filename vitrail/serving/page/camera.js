/** @file The camera dialog of desktop browsers. */

import { announce, byId } from "./dom.js";

/**
 * Shows the camera's video until the user takes a photograph or cancels.
 * @returns {Promise<File | null>} null without a camera, or if cancelled
 */
export async function takePhotograph() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } } });
  } catch (error) {
    const why = /** @type {Error} */ (error).name === "NotAllowedError"
      ? "Access to the camera was denied. Allow it for this page in the browser." : "No camera was found. Choose a file instead.";
    announce(why);
    return null;
  }
  const dialog = /** @type {HTMLDialogElement} */ (byId("camera"));
  const video = /** @type {HTMLVideoElement} */ (byId("camera-video"));
  video.srcObject = stream;
  try {
    await video.play();
    dialog.showModal();
    return await taken(dialog, video);
  } finally {
    stream.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
    dialog.close();
  }
}

/** @returns {Promise<File | null>} */
function taken(dialog, video) {
  return new Promise((resolve) => {
    byId("camera-take").onclick = () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d")?.drawImage(video, 0, 0);
      canvas.toBlob((blob) => resolve(blob && new File([blob], "photograph.jpg", { type: "image/jpeg" })), "image/jpeg", 0.95);
    };
    byId("camera-leave").onclick = () => resolve(null);
    dialog.oncancel = () => resolve(null);
  });
}
