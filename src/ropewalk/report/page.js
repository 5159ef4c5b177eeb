/* The page around the explorer: tables that sort, captions that fold, pictures that open; and the beginning of it all. */

const PAGE = 50;
const collator = new Intl.Collator("en", { numeric: true });

/* Order of two keys; a missing one (null) comes last whichever way the column is sorted. */
function order(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  const away = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
  return direction * away;
}

/* Let the headers of a table sort it: `sort(column, direction)` is called with 1 (ascending) or -1. */
function sortable(table, sort) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.firstElementChild.addEventListener("click", () => {
      const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      sort(column, direction);
    });
  });
}

function keyOf(cell) {
  const key = cell.dataset.key;
  if (key === "") return null;
  return Number.isNaN(Number(key)) ? key : Number(key);
}

document.querySelectorAll("table.sortable").forEach((table) => {
  const body = table.tBodies[0];
  sortable(table, (column, direction) => {
    const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
    rows.sort((a, b) => order(a[0], b[0], direction));
    body.append(...rows.map(([, row]) => row));
  });
});

/* A picture in full size, over the page; Escape or a click closes it. */
document.querySelectorAll("button.enlarge").forEach((button) => {
  button.addEventListener("click", () => {
    const dialog = document.createElement("dialog");
    const picture = button.firstElementChild.cloneNode();
    dialog.append(picture);
    dialog.tabIndex = -1;
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  });
});

/* Numbers are inflated once; the explorer and the table of heads read the same. */
async function begin() {
  const root = document.getElementById("explore");
  if (typeof DecompressionStream === "undefined") {
    root.querySelector(".wait").textContent = "This browser is too old for the explorer; everything below works.";
    return;
  }
  const store = new Store(JSON.parse(document.getElementById("explorer-data").textContent), await inflate(document.getElementById("explorer-arrays").textContent));
  root.explorer = new Explorer(root, store);
  headTable(document.getElementById("heads"), store);
}

begin();
