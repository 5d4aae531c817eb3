// <event-list>: a job's events as they come; what moves in its timeline; a fresh timeline whenever a step or the job changes its state.
import { refresh } from "./live.js";
import { ResumingSocket } from "./resuming-socket.js";

const zone = document.documentElement.dataset.zone || undefined;
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: zone });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long", timeZone: zone });

class EventList extends HTMLElement {
  connectedCallback() {
    if (this.socket) return;
    this.list = this.querySelector("ol");
    this.last = Number(this.dataset.last);
    this.states = new Map([...document.querySelectorAll("[data-step]")].map((step) => [Number(step.dataset.step), step.dataset.state]));
    this.jobState = this.dataset.state;
    this.list.scrollTop = this.list.scrollHeight;
    this.socket = new ResumingSocket({
      address: () => `/ws/jobs/${this.dataset.job}/events/?after=${this.last}`,
      onMessage: (message) => this.hear(message),
      onState: (state) => this.toggleAttribute("data-lost", state === "lost"),
    });
  }

  disconnectedCallback() {
    this.socket?.end();
    this.socket = null;
  }

  hear({ events = [], step, job }) {
    if (events.length) this.take(events);
    if (step) this.move(step);
    if (!job) return;
    if (job.state === this.jobState) {
      this.say(job.sentence);
      return;
    }
    // The new sentence comes with the rest of the page: it would contradict the badge and the buttons beside it.
    this.jobState = job.state;
    this.redraw();
  }

  take(events) {
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    for (const event of events) {
      if (event.seq <= this.last) continue;
      this.last = event.seq;
      this.list.append(row(event));
    }
    this.querySelector("[data-no-events]")?.remove();
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  move(step) {
    const place = document.querySelector(`[data-progress="${step.id}"]`);
    // The markup is the server's own, the same that the page was made of.
    if (place && place.innerHTML.trim() !== step.progress) {
      const scrolled = place.querySelector("[data-keep-scroll]")?.scrollTop ?? 0;
      place.innerHTML = step.progress;
      const list = place.querySelector("[data-keep-scroll]");
      if (list) list.scrollTop = scrolled;
    }
    if (this.states.get(step.id) === step.state) return;
    this.states.set(step.id, step.state);
    this.redraw();
  }

  say(sentence) {
    const line = document.querySelector("#job-hero [data-sentence]");
    if (line && line.textContent !== sentence) line.textContent = sentence;
  }

  redraw() {
    this.drawing ??= setTimeout(() => {
      this.drawing = null;
      refresh(["job-hero", "job-failure", "job-steps", "job-facts"].map((id) => document.getElementById(id)).filter(Boolean));
    }, 30);
  }
}

function row(event) {
  const item = document.createElement("li");
  item.className = `event-${event.level}`;
  const at = new Date(event.at);
  const time = document.createElement("time");
  time.dateTime = event.at;
  time.title = full.format(at);
  time.textContent = clock.format(at);
  const text = document.createElement("div");
  text.textContent = event.text;
  item.append(time, text);
  return item;
}

customElements.define("event-list", EventList);
