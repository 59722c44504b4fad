// Excerpts of the pages found are fetched, which a browser refuses for pages that are read from a disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
