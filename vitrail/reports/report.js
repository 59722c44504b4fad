// Sorts a table by the column whose heading is clicked; a second click reverses the order. Undefined values stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const value = row => row.cells[head.cellIndex].dataset.value;
    const compare = (first, second) => {
      const [a, b] = [value(first), value(second)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, {numeric: true}) : a - b);
    };
    for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    body.append(...[...body.rows].sort(compare));
  });
}
