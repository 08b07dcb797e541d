"use strict";
// The one script of the page: shows only the findings that contain what is typed.
// Without it the page is complete.
for (const form of document.querySelectorAll(".filter")) {
  const rows = Array.from(form.parentElement.querySelectorAll("tbody tr"));
  const shown = form.querySelector("output");
  form.hidden = false;
  form.querySelector("input").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
    shown.textContent = rows.filter((row) => !row.hidden).length + " of " + rows.length;
  });
}
