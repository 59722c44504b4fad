/** @file The camera of a desk, in a dialogue. */

import { announce, byId } from "./dom.js";

/**
 * Shows what the camera sees until a photograph is taken.
 * @returns {Promise<File | null>} null where there is no camera, or none is wanted
 */
export async function takePhotograph() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } } });
  } catch (error) {
    const why = /** @type {Error} */ (error).name === "NotAllowedError"
      ? "The camera may not be used: allow it for this page in the browser." : "No camera was found: choose a file instead.";
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
