// A WebSocket that comes back by itself. `address()` is asked anew for each try, so that it can name the position that was reached:
// what was sent before is not sent again, and nothing in between is lost.
const SILENT_MS = 30000;

export class ResumingSocket {
  constructor({ address, onMessage, onState = () => {} }) {
    Object.assign(this, { address, onMessage, onState, tries: 0, ended: false });
    this.retry = () => this.connect();
    addEventListener("online", this.retry);
    this.watch = setInterval(() => this.checkSilence(), 5000);
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    if (this.ended || [WebSocket.OPEN, WebSocket.CONNECTING].includes(this.socket?.readyState)) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${this.address()}`);
    this.socket = socket;
    this.heardAt = Date.now();
    socket.onopen = () => { this.tries = 0; this.heardAt = Date.now(); this.onState("live"); };
    socket.onmessage = (event) => {
      if (this.socket !== socket || this.ended) return;
      this.heardAt = Date.now();
      const message = JSON.parse(event.data);
      if (!message.tick) this.onMessage(message);
    };
    socket.onclose = () => {
      if (this.socket !== socket || this.ended) return;
      this.onState("lost");
      this.tries += 1;
      this.timer = setTimeout(this.retry, Math.min(10000, 250 * 2 ** Math.min(this.tries, 6)) * (0.7 + 0.6 * Math.random()));
    };
  }

  // A cut network closes nothing: without the server's signs of life the socket is given up.
  checkSilence() {
    if (this.socket?.readyState === WebSocket.OPEN && Date.now() - this.heardAt > SILENT_MS) {
      const old = this.socket;
      old.onclose = null;
      old.close();
      this.socket = null;
      this.onState("lost");
      this.connect();
    }
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    clearInterval(this.watch);
    removeEventListener("online", this.retry);
    this.socket?.close();
  }
}
