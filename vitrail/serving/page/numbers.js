/** @file Formatting of numbers. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {number} value */
export const whole = (value) => WHOLE.format(value);

/**
 * Formats a fraction as a percentage with one or two decimals.
 * @param {number} share
 */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if ( Math.abs(value) < 0.01) return "< 0.01 %";
  const digits = Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} %`;
}

/**
 * Formats the decrease of a probability.
 * @param {number} share negative for an increase
 */
export const fallen = (share) => (share === 0 ? "0 %" : `${percent(Math.abs(share))} ${share > 0 ? "less" : "more"}`);

/** @param {number} value */
export function short(value) {
  if (value === 0 || Number.isInteger(value)) return Math.abs(value) < 1e6 ? WHOLE.format(value) : value.toExponential(1);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** @param {number} value */
export function large(value) {
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]])) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return String(value);
}

/**
 * Formats the time since a moment.
 * @param {number} seconds since the epoch
 */
export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 5) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 172800) return `${Math.round(passed / 3600)} h ago`;
  return `${Math.round(passed / 86400)} days ago`;
}

/** @param {number} bytes */
export const megabytes = (bytes) => `${Number((bytes / 1048576).toPrecision(3))} MiB`;
