// From the text of a vLLM log to rows: `(EngineCore pid=12) INFO 11-29 14:02:11 [core.py:1] …`.
const PROCESS = /^\(([A-Za-z][\w.-]*)(?: pid=(\d+))?\) ?/;
const HEAD = /^(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:(\d\d-\d\d) )?(\d\d:\d\d:\d\d)(?:[.,]\d+)? \[([^\]]+)\] ?/;
const TERMINAL = /\u001b\[[0-9;?]*[A-Za-z]/g;
const RAISED = /^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|^vllm(?: serve)?: error:|^Traceback \(most recent call last\)/;

export function parse(raw) {
  // A progress bar writes over itself: only what it says last is worth a row.
  let text = raw.replace(TERMINAL, "");
  if (text.endsWith("\r")) text = text.slice(0, -1);
  text = text.slice(text.lastIndexOf("\r") + 1);
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

// The first line that names a cause: a traceback's header or frame only says where.
export const namesCause = (line) => line.kind === "error" && /\w/.test(line.text) && !/^(?:Traceback|\s|File "|During handling|The above exception)/.test(line.text)
  && !/^\S+ failed to start\.?$/.test(line.text);

export const isException = (line) => RAISED.test(line.text) && !line.text.startsWith("Traceback");

function cell(tag, css, text, title = "") {
  const element = document.createElement(tag);
  element.className = css;
  element.textContent = text;
  if (title) element.title = title;
  return element;
}

export function fill(row, raw) {
  const line = parse(raw);
  row.className = `log-line ${line.kind}`;
  row.replaceChildren(
    cell("span", "process", line.who, line.pid && `${line.who} pid ${line.pid}`),
    cell("span", "severity", line.level),
    cell("span", "at", line.time, [line.day, line.time, line.where].filter(Boolean).join(" ")),
    cell("span", "said", line.text),
  );
  row.line = line;
  row.raw = raw;
  return row;
}
