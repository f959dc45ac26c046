// SPDX-License-Identifier: Apache-2.0
// Shrinks what is drawn to the 8x8 gray values that the network was trained on, and shows its scores.
import { Model } from "./net/index.js";

const SIZE = 8;
const MARGIN = 0.05;
const LINE_WIDTH = 24;

const pad = document.getElementById("pad").getContext("2d", { willReadFrequently: true });
const seen = document.getElementById("seen").getContext("2d");
const model = await Model.load();

// The smallest square around what is drawn, with a margin; null if nothing is.
function square(pixels, side) {
  let left = side, top = side, right = -1, bottom = -1;
  for (let y = 0; y < side; ++y) {
    for (let x = 0; x < side; ++x) {
      if (pixels[4 * (y * side + x) + 3] === 0) continue;
      left = Math.min(left, x);
      right = Math.max(right, x);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
    }
  }
  if (right < 0) return null;
  const extent = Math.max(right - left, bottom - top) * (1 + 2 * MARGIN) + 1;
  return { x: (left + right + 1 - extent) / 2, y: (top + bottom + 1 - extent) / 2, extent };
}

// Mean darkness of each of 8x8 cells, from 0 to 1.
function grayValues() {
  const side = pad.canvas.width;
  const { data } = pad.getImageData(0, 0, side, side);
  const values = new Float32Array(SIZE * SIZE), counts = new Float32Array(SIZE * SIZE);
  const box = square(data, side);
  if (box === null) return null;
  const samples = 8 * SIZE;
  for (let v = 0; v < samples; ++v) {
    for (let u = 0; u < samples; ++u) {
      const x = Math.floor(box.x + ((u + 0.5) * box.extent) / samples);
      const y = Math.floor(box.y + ((v + 0.5) * box.extent) / samples);
      const cell = Math.floor((v * SIZE) / samples) * SIZE + Math.floor((u * SIZE) / samples);
      counts[cell] += 1;
      if (x >= 0 && y >= 0 && x < side && y < side) values[cell] += data[4 * (y * side + x) + 3] / 255;
    }
  }
  return values.map((value, k) => value / counts[k]);
}

function recognize() {
  const image = grayValues();
  const digit = document.getElementById("digit"), list = document.getElementById("scores");
  const picture = seen.createImageData(SIZE, SIZE);
  if (image !== null) {
    image.forEach((value, k) => picture.data.set([0, 0, 0, Math.round(255 * value)], 4 * k));
    const scores = [...model.run({ image }).scores];
    digit.textContent = String(scores.indexOf(Math.max(...scores)));
    list.textContent = scores.map((score, k) => `${k}: ${Math.round(100 * score)} %`).join(", ");
  } else {
    digit.textContent = list.textContent = "";
  }
  seen.putImageData(picture, 0, 0);
}

let last = null;
pad.canvas.addEventListener("pointerdown", (event) => {
  last = [event.offsetX, event.offsetY];
});
pad.canvas.addEventListener("pointermove", (event) => {
  if (last === null) return;
  pad.lineWidth = LINE_WIDTH;
  pad.lineCap = "round";
  pad.beginPath();
  pad.moveTo(...last);
  last = [event.offsetX, event.offsetY];
  pad.lineTo(...last);
  pad.stroke();
  recognize();
});
for (const name of ["pointerup", "pointerleave"]) pad.canvas.addEventListener(name, () => (last = null));
document.getElementById("clear").addEventListener("click", () => {
  pad.clearRect(0, 0, pad.canvas.width, pad.canvas.height);
  recognize();
});
document.body.dataset.ready = "true";
