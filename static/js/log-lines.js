// From the text of a vLLM log to rows: `(EngineCore pid=12) INFO 11-29 14:02:11 [core.py:1] …`.
const PROCESS = /^\(([A-Za-z][\w.-]*)(?: pid=(\d+))?\) ?/;
const HEAD = /^(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:(\d\d-\d\d) )?(\d\d:\d\d:\d\d)(?:[.,]\d+)? \[([^\]]+)\] ?/;
const TERMINAL = /\u001b\[[0-9;?]*[A-Za-z]/g;
const RAISED = /^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|^vllm(?: serve)?: error:|^Traceback \(most recent call last\)/;

const GAP_BEGINS = "[… ";

export function parse(raw) {
  // A progress bar writes over itself: only what it says last is worth a row.
  let text = raw.replace(TERMINAL, "");
  if (text.endsWith("\r")) text = text.slice(0, -1);
  text = text.slice(text.lastIndexOf("\r") + 1);
  if (raw.startsWith(GAP_BEGINS)) return { who: "", pid: "", level: "", day: "", time: "", where: "", text: raw, kind: "gap" };
  const line = { who: "", pid: "", level: "", day: "", time: "", where: "", text };
  const process = PROCESS.exec(line.text);
  if (process) {
    [, line.who, line.pid = ""] = process;
    line.text = line.text.slice(process[0].length);
  }
  const head = HEAD.exec(line.text);
  if (head) {
    [, line.level, line.day = "", line.time, line.where] = head;
    line.text = line.text.slice(head[0].length);
  }
  const isError = line.level === "ERROR" || line.level === "CRITICAL" || (!line.level && RAISED.test(line.text));
  line.kind = isError ? "error" : line.level === "WARNING" ? "warning" : line.level === "DEBUG" ? "debug" : "";
  return line;
}

// True for lines of this level and above; lines without a level belong to "info". The console's log_index sorts by the same rules.
const RANK = { gap: 5, error: 4, warning: 3, "": 2, debug: 1 };
export const isOfLevel = (line, level) => !level || RANK[line.kind] >= RANK[level === "info" ? "" : level];
export const isOfProcess = (line, process) => !process || line.kind === "gap" || line.who === (process === "-" ? "" : process);

function cell(tag, css, text, title = "") {
  const element = document.createElement(tag);
  element.className = css;
  element.textContent = text;
  if (title) element.title = title;
  return element;
}

// `number` counts from 0 and is shown from 1; `raw` undefined: it is still on its way.
export function fill(row, raw, number) {
  const line = parse(raw ?? "");
  row.className = `log-line ${raw === undefined ? "awaited" : line.kind}`;
  const anchor = cell("a", "number", String(number + 1));
  anchor.href = `#L${number + 1}`;
  anchor.dataset.line = number;
  row.replaceChildren(
    anchor,
    cell("span", "process", line.who, line.pid && `${line.who} pid ${line.pid}`),
    cell("span", "severity", line.level),
    cell("span", "at", line.time, [line.day, line.time, line.where].filter(Boolean).join(" ")),
    cell("span", "said", raw === undefined ? "…" : line.text),
  );
  row.raw = raw;
  row.number = number;
  return row;
}
