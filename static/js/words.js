// The page's words in the reader's language, and times in words. The patterns come from the server (console/common/spans.py).
const source = document.getElementById("words");
export const words = source ? JSON.parse(source.textContent) : {};

const format = (pattern, value) => pattern.replace("%s", value);

export function coarse(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (whole >= size) return format(words.units[name], Math.floor(whole / size));
  }
  return format(words.units.s, whole);
}

export function relative(when, now = Date.now()) {
  const seconds = (now - when) / 1000;
  if (Math.abs(seconds) < 5) return words.units.now;
  return format(seconds > 0 ? words.units.ago : words.units.ahead, coarse(Math.abs(seconds)));
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const steps = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  for (const [at, [name, size]] of steps.entries()) {
    if (whole < size && size > 1) continue;
    const first = format(words.units[name], Math.floor(whole / size));
    if (size === 1) return first;
    const [smaller, smallerSize] = steps[at + 1];
    const second = Math.floor((whole % size) / smallerSize);
    return second ? `${first} ${format(words.units[smaller], second)}` : first;
  }
  return "";
}

// The server's clock decides: a browser whose clock is wrong would otherwise show "in 3 min" for what just happened.
const stamp = document.getElementById("live")?.dataset.now;
const ahead = stamp ? Date.now() - Date.parse(stamp) : 0;
export const serverNow = () => Date.now() - (Math.abs(ahead) > 5000 ? ahead : 0);
