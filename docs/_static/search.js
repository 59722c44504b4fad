// Excerpts of the pages found are fetched, which a browser refuses for pages that are read from a disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
// Decisions and changes say how things came about; pages that say how things are come first.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Scorer === "undefined") return; // not the page of the search
  Scorer.score = ([page, , , , score]) => (/decisions|changelog/.test(page) ? score - 100 : score);
});
