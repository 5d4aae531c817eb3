"""A stand-in for `vllm serve`: the same command line, HTTP surface, log format, process tree and deaths; no model.

    engine.py serve MODEL --host H --port P --served-model-name NAME [anything else]
    engine.py bench serve …     see bench.py

It is ready in about a second. What it should do wrong is set by `Knobs`, from environment variables `STANDIN_<NAME>` or
from a file `standin.json` in the model directory (which wins, so that one engine can serve well and badly at once).
Standard library only, so that it starts fast under any Python.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = "0.32.0"


@dataclasses.dataclass
class Knobs:
    """What the stand-in does; the defaults are a healthy engine."""

    ready_seconds: float = 0.5
    token_seconds: float = 0.002
    fail_exit: int = -1
    """Exit code of a start that fails; -1: the start succeeds. `fail_log` is replayed before."""
    fail_log: str = ""
    fail_after_seconds: float = 0.3
    fail_on_file: str = ""
    """Fail only once this file exists."""
    fail_from_attempt: int = 1
    """The first attempt that fails (attempts are counted by the directory that the process was started in)."""
    never_ready: bool = False
    hang: bool = False
    """Answer /health, but never a token."""
    hang_on_file: str = ""
    """Hang as soon as this file exists, and for as long as it does."""
    no_tokenizer: bool = False
    """Every /tokenize and every answer fails, as without tokenizer files."""
    long_context_error: int = 0
    """Prompts longer than this many tokens fail; 0: none."""
    fickle: bool = False
    """Another sane answer each time."""
    dies_on_chat: bool = False
    """The first chat kills EngineCore, as an unsupported head size does."""
    busy_seconds: float = 0
    """A prompt takes so long to be read; meanwhile the KV cache fills, and no token comes: busy, not hung."""
    read_seconds: float = 0
    """Seconds for each token of a prompt: a CPU's pace. Prompts that come at once are read one after the other."""
    lost_pieces: bool = False
    """A streamed answer has no piece, as with a parser that doesn't fit the model."""
    stream_error: str = ""
    """Message with which a streamed answer ends before its first piece, though its status was 200."""
    answer: str = ""
    """Instead of sense: `garbage` (one token repeated), `empty`, or any other text."""
    chat_error: str = ""
    """Message of the 400 that every chat completion gets."""
    pools: str = ""
    """`embed` or `classify`: a model that makes no text, but vectors."""
    vector: str = ""
    """Instead of sound ones: `zeros`, `not_finite`, `unsteady`, `same_for_all` or `empty`."""
    adapter_seconds: float = 0
    """What loading a LoRA adapter takes."""
    die_after_seconds: float = -1
    die_code: int = 1
    ignore_term: bool = False
    chatter_lines_per_second: float = 0

    @classmethod
    def read(cls, model: str) -> "Knobs":
        knobs = cls()
        for field in dataclasses.fields(cls):
            if text := os.environ.get(f"STANDIN_{field.name.upper()}"):
                setattr(knobs, field.name, _parse(text, getattr(knobs, field.name)))
        file = Path(model) / "standin.json"
        if file.exists():
            for name, value in json.loads(file.read_text(encoding="utf-8")).items():
                setattr(knobs, name, value)
        return knobs


def _parse(text: str, like: object) -> object:
    if isinstance(like, bool):
        return text.lower() in ("1", "true", "yes")
    if isinstance(like, (int, float)):
        return type(like)(text)
    return text


def log(process: str, text: str, place: str = "api_server.py:100", level: str = "INFO") -> None:
    """Write one line as vLLM does; in one write, since several processes share the file."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    line = f"({process} pid={os.getpid()}) {level} {stamp} [{place}] {text}\n"
    os.write(1, line.encode())


class Engine:
    """The main process's knowledge: knobs, names, children, counters."""

    def __init__(self, options: argparse.Namespace, knobs: Knobs) -> None:
        self.options = options
        self.knobs = knobs
        self.names = options.served_model_name or [options.model]
        self.key = os.environ.get("VLLM_API_KEY", "")
        self.tells_usage = "--enable-force-include-usage" in sys.argv
        self.dead = threading.Event()
        self.running = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.reading = 0
        """Prompt tokens of the prompts that are being read now, as far as they are."""
        self.reading_turn = threading.Lock()
        self.vocabulary: list[str] = []
        self.adapters: dict[str, str] = {}
        """Name to path, as /v1/load_lora_adapter put them there."""
        self.takes_adapters = "--enable-lora" in sys.argv and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1"
        self.core: subprocess.Popen[bytes] | None = None

    def start_children(self) -> None:
        """EngineCore is our child, Worker is EngineCore's; both name themselves and live on when we are killed."""
        self.core = subprocess.Popen([sys.executable, "-I", "-S", __file__, "--child", "VLLM::EngineCore"])
        threading.Thread(target=self._watch_core, daemon=True).start()

    def _watch_core(self) -> None:
        assert self.core is not None
        self.core.wait()
        log("APIServer", "AsyncLLM output_handler failed: EngineDeadError", "async_llm.py:700", "ERROR")
        self.dead.set()
        time.sleep(1)
        # Like the real one, which then ends with code 0.
        os._exit(0)

    def tokens_of(self, text: str) -> list[int]:
        """Words and the spaces between them, numbered as they come."""
        pieces = re.findall(r"\s+|\S+", text)
        for piece in pieces:
            if piece not in self.vocabulary:
                self.vocabulary.append(piece)
        return [self.vocabulary.index(piece) for piece in pieces]

    @property
    def hangs(self) -> bool:
        """Told to, or because EngineCore or Worker is stopped: every token comes from them."""
        told = self.knobs.hang or bool(self.knobs.hang_on_file and Path(self.knobs.hang_on_file).exists())
        return told or any(_is_stopped(pid) for pid in self.compute_pids())

    def compute_pids(self) -> list[int]:
        if self.core is None:
            return []
        children = Path(f"/proc/{self.core.pid}/task/{self.core.pid}/children")
        return [self.core.pid, *(int(pid) for pid in (children.read_text().split() if children.exists() else []))]

    def words(self, prompt: str) -> list[str]:
        if self.knobs.fickle:
            return f"The capital of France is Paris, city number {self.requests}.".split()
        if self.knobs.answer == "garbage":
            return ["the"] * 400
        if self.knobs.answer == "empty":
            return []
        if self.knobs.answer:
            return self.knobs.answer.split()
        if "capital of france" in prompt.lower():
            return ["The", "capital", "of", "France", "is", "Paris."]
        return _PARAGRAPH.split()

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.names[0]}"}}'
        return "".join(
            f"# TYPE {name} {kind}\n{name}{label} {value}\n"
            for name, kind, value in (
                ("vllm:num_requests_running", "gauge", float(self.running)),
                ("vllm:num_requests_waiting", "gauge", 0.0),
                ("vllm:kv_cache_usage_perc", "gauge", min(1.0, self.running * 0.01 + self.reading * 1e-5)),
                ("vllm:prompt_tokens_total", "counter", float(self.prompt_tokens)),
                ("vllm:generation_tokens_total", "counter", float(self.generation_tokens)),
                ("vllm:request_success_total", "counter", float(self.requests)),
            )
        )


_PARAGRAPH = (
    "The sea lies grey and quiet before the harbour at dawn. Small boats drift out past the stone wall while gulls "
    "circle above them, and the smell of salt fills every street of the town. By noon a wind rises from the west and "
    "throws bright foam against the rocks. Children count the waves and argue about which one was highest. In the "
    "evening the water turns dark blue, lamps appear along the shore, and fishermen tell stories of storms that their "
    "grandparents saw. Some of these tales must be true, because old timbers still wash up each winter, covered with "
    "shells and worn smooth by years of travel. Then night comes, and only the sound of the tide remains, steady as "
    "breathing, older than any map or lighthouse or song about it."
)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ("/health", "/ping"):
            self._send(503 if self.engine.dead.is_set() else 200, b"")
        elif path == "/version":
            self._json(200, {"version": VERSION})
        elif path == "/metrics":
            self._send(200, self.engine.metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/v1/models" and self._allowed():
            models = [
                {"id": name, "object": "model", "owned_by": "vllm", "root": self.engine.options.model,
                 "max_model_len": self.engine.options.max_model_len}
                for name in self.engine.names
            ]  # fmt: skip
            models += [
                {"id": name, "object": "model", "owned_by": "vllm", "root": path, "parent": self.engine.names[0]}
                for name, path in self.engine.adapters.items()
            ]
            self._json(200, {"object": "list", "data": models})
        elif path in self._interfaces():
            self._json(405, {"detail": "Method Not Allowed"})
        elif path != "/v1/models":
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path in ("/tokenize", "/detokenize"):
            self._tokenizer(body)
        elif self.path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter") and self.engine.takes_adapters:
            if self._allowed():
                self._adapter(body)
        elif self.path not in self._interfaces():
            self._json(404, {"detail": "Not Found"})
        elif self.engine.knobs.pools:
            if self._allowed() and self._known(body):
                self._pool(body)
        elif self._allowed() and self._known(body):
            self._complete(body, chat="chat" in self.path)

    def _interfaces(self) -> tuple[str, ...]:
        """Those of the model's tasks only, like the real one."""
        if self.engine.knobs.pools == "embed":
            return ("/v1/embeddings", "/pooling")
        return ("/classify", "/pooling") if self.engine.knobs.pools else ("/v1/chat/completions", "/v1/completions")

    def _pool(self, body: dict) -> None:
        """A vector that only depends on the text; of two numbers that add up to 1 where it classifies."""
        engine, given = self.engine, body["input"]
        while engine.hangs:
            time.sleep(0.1)
        size = 2 if engine.knobs.pools == "classify" else 8
        seed = "" if engine.knobs.vector == "same_for_all" else str(given)
        seed += str(engine.requests) if engine.knobs.vector == "unsteady" else ""
        dice = random.Random(seed)
        values: list = [dice.uniform(0.1, 1) for _ in range(size)]
        if engine.knobs.pools == "classify":
            values = [one / sum(values) for one in values]
        values = {"zeros": [0.0] * size, "not_finite": [None] * size, "empty": []}.get(engine.knobs.vector, values)
        count = len(given) if isinstance(given, list) else len(given.split())
        self._read_prompt(count)
        engine.requests += 1
        engine.prompt_tokens += count
        name = "embedding" if self.path == "/v1/embeddings" else "data"
        found = [{"index": 0, "object": name, name: values}]
        self._json(200, {"object": "list", "data": found, "usage": {"prompt_tokens": count, "total_tokens": count}})

    def _tokenizer(self, body: dict) -> None:
        engine = self.engine
        if engine.knobs.no_tokenizer or (engine.knobs.chat_error and "messages" in body):
            message = engine.knobs.chat_error or "no tokenizer"
            self._json(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
        elif self.path == "/detokenize":
            self._json(200, {"prompt": "".join(engine.vocabulary[token] for token in body["tokens"])})
        else:
            text = f"<user>\n{_prompt_of(body)}\n<assistant>\n" if "messages" in body else body.get("prompt", "")
            tokens = engine.tokens_of(text)
            self._json(200, {"count": len(tokens), "max_model_len": engine.options.max_model_len, "tokens": tokens})

    def _adapter(self, body: dict) -> None:
        """Load or unload; what is in the way is said as the real one says it."""
        adapters, name = self.engine.adapters, body["lora_name"]
        refused, status = "", 400
        if self.path == "/v1/unload_lora_adapter":
            if adapters.pop(name, None) is None:
                refused, status = f"The lora adapter '{name}' cannot be found.", 404
        elif name in self.engine.names:
            refused = f"The lora adapter '{name}' conflicts with a served base model."
        elif name in adapters and not body.get("load_inplace"):
            refused = f"The lora adapter '{name}' has already been loaded."
        else:
            refused, status = self._adapter_problem(Path(body["lora_path"]))
            if not refused:
                time.sleep(self.engine.knobs.adapter_seconds)
                adapters[name] = body["lora_path"]
        if refused:
            self._json(status, {"error": {"message": refused, "type": "InvalidUserInput", "code": status}})
        else:
            self._send(200, f"Success: LoRA adapter '{name}' done.".encode())

    def _adapter_problem(self, path: Path) -> tuple[str, int]:
        file = path / "adapter_config.json"
        if not file.exists():
            return f"Loading lora failed: No adapter found for {path}", 404
        rank = json.loads(file.read_text()).get("r", 0)
        most = self.engine.options.max_lora_rank
        return (f"LoRA rank {rank} is greater than max_lora_rank {most}.", 500) if rank > most else ("", 400)

    def _allowed(self) -> bool:
        if not self.engine.key or self.headers.get("Authorization") == f"Bearer {self.engine.key}":
            return True
        self._json(401, {"error": "Unauthorized"})
        return False

    def _known(self, body: dict) -> bool:
        if body.get("model", self.engine.names[0]) not in {*self.engine.names, *self.engine.adapters}:
            message = f"The model `{body['model']}` does not exist."
            self._json(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
            return False
        refused = ""
        if "messages" in body and self.engine.knobs.chat_error:
            refused = self.engine.knobs.chat_error
        limit = self.engine.knobs.long_context_error
        if limit and isinstance(body.get("prompt"), list) and len(body["prompt"]) > limit:
            refused = "the KV cache is full"
        if refused:
            self._json(400, {"error": {"message": refused, "type": "BadRequestError", "code": 400}})
        elif "messages" in body and self.engine.knobs.dies_on_chat and self.engine.core:
            self.engine.core.kill()
            time.sleep(0.2)
            self._json(500, {"error": {"message": "EngineCore encountered an issue", "code": 500}})
            return False
        return not refused

    def _complete(self, body: dict, *, chat: bool) -> None:
        engine = self.engine
        given = body.get("prompt", "")
        prompt = _prompt_of(body) if chat else given if isinstance(given, str) else " ".join(map(str, given))
        words = self._special_answer(body) or engine.words(prompt)
        if body.get("model") in engine.adapters:
            words = ["As", str(body["model"]), "says:", *words]
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4096)
        sent = words[:limit]
        finish = "length" if len(words) > limit else "stop"
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(sent)}
        usage["total_tokens"] = sum(usage.values())
        engine.running += 1
        try:
            while engine.hangs:
                time.sleep(0.1)
            self._read_prompt(len(prompt.split()))
            if body.get("stream"):
                self._stream(body, sent, finish, usage, chat=chat)
            else:
                time.sleep(engine.knobs.token_seconds * len(sent))
                self._whole(body, sent, finish, usage, chat=chat)
        finally:
            engine.running -= 1
        engine.requests += 1
        engine.prompt_tokens += usage["prompt_tokens"]
        engine.generation_tokens += len(sent)

    def _read_prompt(self, tokens: int) -> None:
        with self.engine.reading_turn:
            time.sleep(self.engine.knobs.read_seconds * tokens)
        end = time.monotonic() + self.engine.knobs.busy_seconds
        read = 0
        while time.monotonic() < end:
            time.sleep(0.05)
            read += 64
            self.engine.reading += 64
        self.engine.reading -= read

    def _special_answer(self, body: dict) -> list[str]:
        """What a schema or a tool asks for."""
        if body.get("response_format", {}).get("type") == "json_schema":
            return ['{"city": "Paris", "country": "France"}']
        return []

    def _whole(self, body: dict, words: list[str], finish: str, usage: dict, *, chat: bool) -> None:
        text, tools = " ".join(words), body.get("tools")
        model = body.get("model", self.engine.names[0])
        choice = {"index": 0, "finish_reason": finish}
        message: dict = {"role": "assistant", "content": text}
        if tools:
            call = {"name": tools[0]["function"]["name"], "arguments": '{"city": "Paris"}'}
            message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]}
        choice |= {"message": message} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        answer = {"id": self._id(chat=chat), "object": kind, "created": int(time.time())}
        self._json(200, answer | {"model": model, "choices": [choice], "usage": usage})

    def _stream(self, body: dict, words: list[str], finish: str, usage: dict, *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        base = {"id": self._id(chat=chat), "object": "chat.completion.chunk" if chat else "text_completion"}
        base |= {"created": int(time.time()), "model": self.engine.names[0]}
        if chat:
            self._event(base | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if self.engine.knobs.stream_error:
            self._event({"error": {"message": self.engine.knobs.stream_error, "code": 500}})
        for number, word in enumerate([] if self.engine.knobs.lost_pieces or self.engine.knobs.stream_error else words):
            time.sleep(self.engine.knobs.token_seconds)
            text = word if number == 0 else f" {word}"
            part = {"delta": {"content": text}} if chat else {"text": text}
            last = number == len(words) - 1
            self._event(base | {"choices": [{"index": 0, "finish_reason": finish if last else None} | part]})
        if self.engine.tells_usage or (body.get("stream_options") or {}).get("include_usage"):
            self._event(base | {"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: dict) -> None:
        self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _id(self, *, chat: bool) -> str:
        given = self.headers.get("X-Request-Id") or os.urandom(8).hex()
        return f"{'chatcmpl' if chat else 'cmpl'}-{given}"

    def _json(self, status: int, content: object) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _prompt_of(body: dict) -> str:
    parts = []
    for message in body.get("messages", []):
        content = message.get("content") or ""
        parts.append(content if isinstance(content, str) else " ".join(part.get("text", "") for part in content))
    return " ".join(parts)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def run_child(title: str) -> None:
    """EngineCore starts the Worker and dies with it; the Worker just lives. Both end on SIGTERM."""
    name = title.removeprefix("VLLM::")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if name == "Worker":
        log("Worker", "Starting to load model ...", "gpu_model_runner.py:1")
        while True:
            time.sleep(3600)
    worker = subprocess.Popen([sys.executable, "-I", "-S", __file__, "--child", "VLLM::Worker"])

    def end(_number: int, _frame: object) -> None:
        worker.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    log("EngineCore", f"Initializing a V1 LLM engine (v{VERSION}) with config: stand-in", "core.py:133")
    worker.wait()
    log("EngineCore", "Worker proc died unexpectedly, shutting down executor.", "multiproc_executor.py:300", "ERROR")
    os._exit(1)


def serve(options: argparse.Namespace) -> None:
    knobs = Knobs.read(options.model)
    attempt = Path.cwd().name
    log("APIServer", f"vLLM version {VERSION} (stand-in), model {options.model}", "api_utils.py:286")
    if not Path(options.model).is_dir():
        log("APIServer", f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{options.model}'. "
            "Use `repo_type` argument if needed.", level="ERROR")  # fmt: skip
        sys.exit(1)
    if knobs.fail_exit >= 0 and (not attempt.isdigit() or int(attempt) >= knobs.fail_from_attempt):
        time.sleep(knobs.fail_after_seconds)
        while knobs.fail_on_file and not Path(knobs.fail_on_file).exists():
            time.sleep(0.02)
        if knobs.fail_log:
            os.write(1, Path(knobs.fail_log).read_bytes())
        sys.exit(knobs.fail_exit)
    engine = Engine(options, knobs)
    Handler.engine = engine
    signal.signal(signal.SIGTERM, signal.SIG_IGN if knobs.ignore_term else lambda *_: _end(engine))
    engine.start_children()
    time.sleep(knobs.ready_seconds)
    while knobs.never_ready:
        time.sleep(0.2)
    server = Server((options.host, options.port), Handler)
    log("APIServer", f"Starting vLLM server on http://{options.host}:{options.port}")
    if knobs.die_after_seconds >= 0:
        threading.Timer(knobs.die_after_seconds, os._exit, [knobs.die_code]).start()
    if knobs.chatter_lines_per_second:
        threading.Thread(target=_chatter, args=[knobs.chatter_lines_per_second], daemon=True).start()
    log("APIServer", "Application startup complete.")
    server.serve_forever(poll_interval=0.05)


def _chatter(lines_per_second: float) -> None:
    number = 0
    while True:
        number += 1
        log("APIServer", f"chatter {number}", "chatter.py:1")
        time.sleep(1 / lines_per_second)


def _end(engine: Engine) -> None:
    log("APIServer", "Shutting down", "launcher.py:1")
    if engine.core is not None:
        engine.core.terminate()
    os._exit(0)


def run_bench(arguments: list[str]) -> None:
    """The file beside this one: started isolated, nothing of our own folder can be imported by name."""
    spec = importlib.util.spec_from_file_location("bench", Path(__file__).with_name("bench.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.bench(arguments)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2])
        return
    if sys.argv[1:3] == ["bench", "serve"]:
        run_bench(sys.argv[3:])
        return
    parser = argparse.ArgumentParser(prog="standin", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("serve")
    command.add_argument("model")
    command.add_argument("--host", default="0.0.0.0")
    command.add_argument("--port", type=int, default=8000)
    command.add_argument("--served-model-name", nargs="+")
    command.add_argument("--max-model-len", type=int, default=4096)
    command.add_argument("--max-lora-rank", type=int, default=16)
    options, _others = parser.parse_known_args()
    serve(options)


if __name__ == "__main__":
    main()
