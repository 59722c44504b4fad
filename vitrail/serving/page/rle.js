/**
 * @file Masks as COCO stores them: compressed lengths of runs, column by column (Lin et al. 2014, Microsoft COCO).
 *
 * A mask is a list of places where its runs begin and end, in turn; a place counts the pixels down the columns.
 */

/**
 * Decodes the text of a mask.
 * @param {string} text
 * @returns {number[]}
 */
export function decode(text) {
  /** @type {number[]} */
  const counts = [], edges = [];
  for (let at = 0, place = 0; at < text.length;) {
    let value = 0, shift = 0, code = 32;
    for (; code & 32; shift += 5) { // five bits a character, the lowest first; the sixth says that more follow
      code = text.charCodeAt(at++) - 48;
      value |= (code & 31) << shift;
    }
    if (code & 16) value |= -1 << shift; // two's complement
    if (counts.length > 2) value += counts[counts.length - 2]; // stored as the difference
    counts.push(value);
    edges.push(place += value);
  }
  return edges.slice(0, edges.length - (edges.length % 2)); // without the end of a run outside of the mask
}

/**
 * Keeps every `step`-th pixel of both axes. No run of the result spans two columns.
 * @param {number[]} edges
 * @param {number} height of the mask
 * @param {number} step
 */
export function sample(edges, height, step) {
  /** @type {number[]} */
  const kept = [], rows = Math.ceil(height / step);
  for (let at = 0; at < edges.length; at += 2) {
    for (let column = Math.floor(edges[at] / height); column * height < edges[at + 1]; column++) {
      if (column % step) continue;
      const [from, to] = [edges[at], edges[at + 1]].map((edge) => Math.ceil(Math.min(Math.max(edge - column * height, 0), height) / step));
      if (from === to) continue;
      const first = (column / step) * rows;
      if (from > 0 && kept.at(-1) === first + from) kept.pop(); // the pixels between the two runs are left out
      else kept.push(first + from);
      kept.push(first + to);
    }
  }
  return kept;
}

/**
 * Keeps the pixels of a mask whose `width` neighbours above, below, left and right are all in it.
 * @param {number[]} edges as `sample` returns them
 * @param {number} height of the mask
 * @param {number} width
 */
export function erode(edges, height, width) {
  /** @type {number[]} */
  const shorter = [];
  for (let at = 0; at < edges.length; at += 2) {
    if (edges[at + 1] - edges[at] > 2 * width) shorter.push(edges[at] + width, edges[at + 1] - width);
  }
  let inner = shorter;
  for (let by = height; by <= width * height; by += height) inner = intersect(intersect(inner, edges, by), edges, -by);
  return inner;
}

/** The intersection of two masks, the second of them moved by `shift` places. */
function intersect(first, second, shift) {
  const both = [];
  for (let i = 0, j = 0; i < first.length && j < second.length;) {
    const from = Math.max(first[i], second[j] + shift), stop = first[i + 1], other = second[j + 1] + shift;
    if (from < Math.min(stop, other)) both.push(from, Math.min(stop, other));
    if (stop < other) i += 2;
    else j += 2;
  }
  return both;
}

/**
 * Whether a mask covers a place.
 * @param {number[]} edges
 * @param {number} place
 */
export function covers(edges, place) {
  let low = 0, high = edges.length; // the number of edges up to and with the place is odd inside
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= place) low = middle + 1;
    else high = middle;
  }
  return low % 2 === 1;
}
