// A click on the title of a column sorts its table.

function startTables() {
  for (const table of document.querySelectorAll("main table:not(.pane table)")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => sortTable(table, head, column));
    });
  }
}

function sortTable(table, head, column) {
  const isDescending = head.getAttribute("aria-sort") !== "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const keys = new Map([...body.rows].map((row) => [row, row.cells[column].dataset.number]));
  const compare = (a, b) =>
    keys.get(a) === undefined || keys.get(b) === undefined
      ? b.cells[column].textContent.localeCompare(a.cells[column].textContent)
      : keys.get(b) - keys.get(a);
  body.append(...[...body.rows].sort((a, b) => (isDescending ? compare(a, b) : compare(b, a))));
}
