// SPDX-License-Identifier: Apache-2.0
// Pictures: the wheel zooms, dragging moves, a double click shows all.
for (const svg of document.querySelectorAll("svg")) {
  const view = svg.viewBox.baseVal, extent = svg.getAttribute("data-all").split(" ").map(Number);
  const point = e => new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
  let held = null;
  const show = (x, y, width, height) => Object.assign(view, {x, y, width, height});
  svg.onwheel = e => {
    const factor = Math.exp(e.deltaY / 500), at = point(e);
    show(at.x + (view.x - at.x) * factor, at.y + (view.y - at.y) * factor, view.width * factor, view.height * factor);
    e.preventDefault();
  };
  svg.onpointerdown = e => { held = point(e); svg.setPointerCapture(e.pointerId); };
  svg.onpointermove = e => { if (held) { const at = point(e); view.x += held.x - at.x; view.y += held.y - at.y; } };
  svg.onpointerup = () => { held = null; };
  svg.ondblclick = () => show(...extent);
}
