// <chat-box>: a conversation with a deployment, streamed through the console. Text is only ever set as text.
const number = new Intl.NumberFormat(document.documentElement.lang, { maximumFractionDigits: 1 });

class ChatBox extends HTMLElement {
  connectedCallback() {
    if (this.messages) return;
    const part = (name) => this.querySelector(`[data-chat-${name}]`);
    Object.assign(this, {
      messages: [], lines: part("lines"), empty: part("empty"), text: part("text"), send: part("send"), stop: part("stop"),
      system: part("system"), temperature: part("temperature"), max: part("max"),
    });
    part("form").addEventListener("submit", (event) => { event.preventDefault(); this.ask(this.text.value); });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask(this.text.value);
    });
    part("example").addEventListener("click", (event) => this.ask(event.target.textContent));
    part("clear").addEventListener("click", () => this.clear());
    this.stop.addEventListener("click", () => this.abort?.abort());
    this.text.focus({ preventScroll: true });
  }

  disconnectedCallback() { this.abort?.abort(); }

  clear() {
    this.abort?.abort();
    this.messages = [];
    this.lines.replaceChildren(this.empty);
    this.text.focus();
  }

  add(role) {
    this.empty.remove();
    const line = document.createElement("article");
    line.className = `chat-line chat-${role}`;
    const who = document.createElement("b");
    who.textContent = role === "user" ? this.dataset.wordYou : this.dataset.wordModel;
    const body = document.createElement("div");
    body.className = "chat-text";
    line.append(who, body);
    this.lines.append(line);
    return { line, body };
  }

  note(line, text, css) {
    const note = document.createElement("small");
    note.className = css;
    note.textContent = text;
    line.append(note);
    this.follow(true);
  }

  follow(always) {
    const left = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight;
    if (always || left < 80) this.lines.scrollTop = this.lines.scrollHeight;
  }

  async ask(text) {
    if (!text.trim() || this.abort) return;
    this.text.value = "";
    this.messages.push({ role: "user", content: text });
    this.add("user").body.textContent = text;
    const answer = this.add("assistant");
    answer.line.classList.add("busy");
    this.follow(true);
    this.abort = new AbortController();
    this.busy(true);
    const said = { text: "", thinking: "" };
    try {
      await this.receive(answer, said);
    } catch (error) {
      if (error.name === "AbortError") this.note(answer.line, this.dataset.wordStopped, "chat-meta");
      else this.note(answer.line, this.dataset.wordLost, "chat-error");
    }
    answer.line.classList.remove("busy");
    // A turn without an answer would break the alternation that chat templates want.
    if (said.text) this.messages.push({ role: "assistant", content: said.text });
    else this.messages.pop();
    this.abort = null;
    this.busy(false);
    this.text.focus();
  }

  busy(is) {
    this.send.hidden = is;
    this.stop.hidden = !is;
    this.lines.setAttribute("aria-busy", String(is));
  }

  async receive(answer, said) {
    const response = await fetch(this.dataset.url, {
      method: "POST",
      signal: this.abort.signal,
      headers: { "Content-Type": "application/json", "X-CSRFToken": this.querySelector("[name=csrfmiddlewaretoken]").value },
      body: JSON.stringify({
        messages: this.messages,
        system: this.system.value,
        temperature: Number(this.temperature.value || 0),
        max_tokens: Number(this.max.value || 512),
      }),
    });
    if (!response.ok || response.redirected) {
      const content = await response.json().catch(() => ({}));
      this.note(answer.line, content.error?.message ?? this.dataset.wordLost, "chat-error");
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let ended = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const content = JSON.parse(event.replace(/^data: /, ""));
        ended ||= "done" in content || "error" in content;
        this.take(answer, said, content);
      }
    }
    if (!ended) this.note(answer.line, this.dataset.wordLost, "chat-error");
  }

  take(answer, said, event) {
    if (event.thinking) {
      said.thinking += event.thinking;
      answer.thought ??= this.thought(answer);
      answer.thought.textContent = said.thinking;
    }
    if (event.text) {
      said.text += event.text;
      answer.body.textContent = said.text;
    }
    this.follow(false);
    if (event.error) this.note(answer.line, event.error.message, "chat-error");
    if (event.done) this.note(answer.line, this.measured(event.done), "chat-meta");
  }

  thought(answer) {
    const thought = document.createElement("div");
    thought.className = "chat-thought";
    answer.body.before(thought);
    return thought;
  }

  measured(done) {
    const words = this.dataset;
    const parts = [];
    if (done.ttft_seconds !== null) parts.push(`${words.wordFirst} ${number.format(Math.round(done.ttft_seconds * 1000))} ms`);
    if (done.completion_tokens) parts.push(`${number.format(done.completion_tokens)} ${words.wordTokens}`);
    if (done.tokens_per_second) parts.push(`${number.format(done.tokens_per_second)} ${words.wordSpeed}`);
    if (done.prompt_tokens) parts.push(`${words.wordPrompt} ${number.format(done.prompt_tokens)} ${words.wordTokens}`);
    if (done.finish_reason) parts.push(`${words.wordFinish} ${done.finish_reason}`);
    return parts.join(" · ");
  }
}

customElements.define("chat-box", ChatBox);
