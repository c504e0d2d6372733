"use strict";
(() => {
  const canvas = document.querySelector(".canvas");
  const zoom = document.querySelector(".zoom");
  if (canvas && zoom) {
    zoom.hidden = false;
    zoom.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const scroller = canvas.parentElement;
      const middle = (scroller.scrollLeft + scroller.clientWidth / 2) / canvas.offsetWidth;
      canvas.style.width = `${100 * button.dataset.zoom}%`;
      scroller.scrollLeft = middle * canvas.offsetWidth - scroller.clientWidth / 2;
      for (const each of zoom.children) each.setAttribute("aria-pressed", String(each === button));
    });
  }

  const detail = document.getElementById("detail");
  const boxes = [...document.querySelectorAll(".box")];
  const show = (box) => {
    const number = box.dataset.transfer;
    for (const each of boxes) each.classList.toggle("chosen", number !== "" && each.dataset.transfer === number);
    for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    const row = number === "" ? null : document.getElementById(`transfer-${number}`);
    let text = box.getAttribute("aria-label");
    if (row) {
      row.classList.add("chosen");
      const cells = row.cells;
      const gradients = row.querySelector("details p").textContent;
      text += `. ${cells[2].textContent}, ${cells[4].textContent}, ${cells[6].textContent} window: ${gradients}`;
    }
    detail.textContent = text;
  };
  // One stop of the Tab key for each lane; arrow keys go on from there.
  for (const lane of document.querySelectorAll(".lane.link")) {
    const own = [...lane.querySelectorAll(".box")];
    own.forEach((box, place) => {
      box.tabIndex = place === 0 ? 0 : -1;
      box.addEventListener("focus", () => show(box));
      box.addEventListener("pointerenter", () => show(box));
      box.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = by && own[place + by];
        if (!next) return;
        event.preventDefault();
        box.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
    });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
        const isNumber = head.classList.contains("n");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (isNumber ? value(a) - value(b) : value(a).localeCompare(value(b))) * (up ? 1 : -1));
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
