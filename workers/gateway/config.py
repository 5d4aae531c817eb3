"""haproxy.cfg from a `Gateway`: a pure function, so that the same rows always give the same text.

Servers stand in it for the next start; a running HAProxy gets them by its runtime API. `skeleton` is the configuration
without them: only a change of that needs a reload.
"""

from collections.abc import Iterable

from workers.gateway import maps
from workers.gateway.description import ADAPTER, BURST_SECONDS, Gateway, Listener, Route, Server, Target
from workers.gateway.program import ADMIN_SOCKET, SHADOW_SOCKET
from workers.gateway.refusals import json_error, refuse

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank",
    "/v1/score", "/v1/pooling", "/v1/classify", "/tokenize",
)  # fmt: skip
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Those whose answers cost tokens; the Lua file knows them, too."""
HEADROOM_BYTES = 160 * 1024
"""What the buffer holds beside the body: headers, and room to rewrite them."""
CHECK = (
    "check inter 400ms fastinter 100ms downinter 500ms fall 2 rise 2 observe layer7 error-limit 4 on-error mark-down"
)
ADAPTER_CHECK = CHECK.replace("inter 400ms", "inter 1s", 1)
"""The same instance is checked for its model already, and may have many adapters."""
_LIMIT_FIELDS = ("requests", "tokens", "at_once")


def check_of(backend: str) -> str:
    """How the servers of a backend are looked after."""
    return ADAPTER_CHECK if ADAPTER in backend else CHECK


def render(gateway: Gateway) -> str:
    """The whole configuration."""
    return _joined(gateway, servers=True)


def skeleton(gateway: Gateway) -> str:
    """The configuration without its servers: if it stays the same, no reload is needed."""
    return _joined(gateway, servers=False)


def _joined(gateway: Gateway, *, servers: bool) -> str:
    parts = [_global(gateway.listener), _defaults(), _tables()]
    for thread in range(1, gateway.listener.threads + 1):
        parts += [_frontend(gateway, thread), _shadow_frontend(gateway.listener, thread)]
    for route in gateway.routes:
        parts += [_backend(route, target, servers=servers) for target in route.targets]
    return "\n".join(line for part in parts for line in [*part, ""])


def _global(listener: Listener) -> list[str]:
    return [
        "# Written by Slipway; changes made here are lost.",
        "global",
        f"    maxconn {listener.connections}",
        f"    nbthread {listener.threads}",
        "    localpeer slipway",
        f"    tune.bufsize {listener.body_limit_bytes + HEADROOM_BYTES}",
        # Buffers are large, so that a whole body fits. Without room to keep some, each would be given back to the system and
        # its pages fetched again (`program.environment` helps, too).
        "    tune.memory.hot-size 268435456",
        "    tune.maxrewrite 65536",
        "    tune.http.maxhdr 64",
        "    tune.stick-counters 6",
        "    tune.lua.session-timeout 10s",
        "    hard-stop-after 30m",
        f"    stats socket unix@{ADMIN_SOCKET} mode 600 level admin expose-fd listeners",
        f"    lua-load-per-thread {listener.lua}",
        f"    log fd@{listener.log_descriptor} len 8192 format raw local0",
        "peers slipway",
        f"    peer slipway 127.0.0.1:{listener.peer_port}",
    ]


def _defaults() -> list[str]:
    errors = {
        400: ("bad_request", "The request is not valid HTTP.", None),
        408: ("timeout", "The request did not arrive in time.", None),
        500: ("gateway_error", "The gateway made an error.", None),
        502: ("engine_error", "The engine broke the connection before it answered.", 1),
        503: ("no_instance", "No instance took the request in time. Try again shortly.", 5),
        504: ("engine_timeout", "The engine sent nothing in time.", None),
    }
    return [
        "defaults",
        "    mode http",
        "    log global",
        "    option http-no-delay",
        "    option abortonclose",
        "    option redispatch 1",
        "    retries 1",
        "    retry-on conn-failure empty-response 500 502 503 504",
        "    timeout connect 2s",
        "    timeout client 15m",
        "    timeout server 15m",
        "    timeout http-request 10s",
        "    timeout http-keep-alive 60s",
        "    timeout queue 30s",
        *[
            f"    http-error status {status} content-type application/json"
            + (f" hdr Retry-After {retry}" if retry else "")
            + f" string {json_error(message, code)}"
            for status, (code, message, retry) in errors.items()
        ],
    ]


def _tables() -> list[str]:
    return [
        "backend requests",
        "    stick-table type string len 24 size 100k expire 10m store conn_cur,gpc(1),gpc_rate(1,60s) peers slipway",
        "backend tokens",
        f"    stick-table type string len 24 size 100k expire 10m store gpc(1),gpc_rate(1,{BURST_SECONDS}s) peers slipway",
    ]


LOG_FIELDS = {
    "id": "%[var(txn.id),json(utf8s)]",
    "at": "%Ts.%ms",
    "from": "%ci",
    "path": "%[var(txn.path),json(utf8s)]",
    "key": "%[var(txn.key)]",
    "route": "%[var(txn.route)]",
    "model": "%[var(txn.model),json(utf8s)]",
    "backend": "%b",
    "server": "%s",
    "status": "%ST",
    "refusal": "%[var(txn.refusal)]",
    "fallback": "%[var(txn.fallback)]",
    "cost": "%[var(txn.charged)]",
    "prompt_tokens": "%[var(txn.prompt_tokens)]",
    "output_tokens": "%[var(txn.output_tokens)]",
    "estimate": "%[var(txn.prompt)]",
    "answer_bytes": "%[var(txn.answer_bytes)]",
    "finish_reason": "%[var(txn.finish_reason)]",
    "first_ms": "%[var(txn.first_ms)]",
    "latency_ms": "%Ta",
    "queue_ms": "%Tw",
    "end": "%ts",
    "shadow": "%[var(txn.shadow)]",
}


def _frontend(gateway: Gateway, thread: int) -> list[str]:
    """What one thread takes in. Each writes the access log by a descriptor of its own.

    HAProxy drops a line rather than wait for another thread that is writing to the same descriptor: usage would be lost.
    """
    listener = gateway.listener
    tls = f" ssl crt {listener.certificate} alpn h2,http/1.1 ssl-min-ver TLSv1.2" if listener.certificate else ""
    rules = [
        *_arrival(),
        *_identity(listener),
        *_models(),
        *_body(listener),
        *_routing(gateway),
        *_careful_reading(listener),
        *_admission(gateway),
        *_shadowing(listener),
    ]
    return [
        *([f"# certificate {listener.certificate_sha256}"] if tls else []),
        f"frontend gateway{thread}",
        f"    bind {_host(listener.address)}:{listener.port} thread {thread}{tls}",
        *_logged(listener, thread),
        *[f"    {rule}" for rule in rules],
        "    http-after-response set-header X-Request-Id %[var(txn.id)]",
        "    http-after-response set-header X-Token-Cost %[var(txn.charged)] if { var(txn.charged) -m found }",
        "    http-after-response set-header X-Slipway-Fallback %[var(txn.fallback)] if { var(txn.fallback) -m found }",
        "    use_backend %[var(txn.to)]",
    ]


def _logged(listener: Listener, thread: int) -> list[str]:
    # Strings throughout: HAProxy writes "-" for what is not known, which would be no JSON number.
    log = ",".join(f'"{name}":"{form}"' for name, form in LOG_FIELDS.items())
    return [
        "    no log",
        f"    log fd@{listener.log_descriptors[thread]} len 8192 format raw local0",
        "    filter lua.slipway_usage",
        f"    log-format '{{{log}}}'",
    ]


def _shadowing(listener: Listener) -> list[str]:
    """A copy of what was admitted, where the route consents: handed to a task, so that the request itself goes on at once."""
    return [
        f"http-request set-var(txn.shadow) var(txn.route),concat(@,txn.to),{_map(listener, 'shadows')}",
        "http-request lua.slipway_shadow if { var(txn.shadow) -m found }",
    ]


def _shadow_frontend(listener: Listener, thread: int) -> list[str]:
    """Where one thread's copies come in, on a socket that only this HAProxy can open: measured and logged as any request.

    No key is asked for and nothing is counted: the request that was copied has paid already.
    """
    return [
        f"frontend shadow{thread}",
        f"    bind unix@{SHADOW_SOCKET.format(thread)} mode 600 thread {thread}",
        *_logged(listener, thread),
        "    http-request set-var(txn.id) req.fhdr(X-Request-Id)",
        "    http-request set-var(txn.path) path",
        "    http-request set-var(txn.order) req.fhdr(X-Slipway-Shadow)",
        *[
            f"    http-request set-var(txn.{name}) var(txn.order),field({at},;)"
            for at, name in enumerate(("to", "key", "route"), start=1)
        ],
        # The name comes last, since it may hold the separator.
        "    http-request set-var(txn.model) var(txn.order),field(4,;,0)",
        "    http-request set-var(txn.shadow) str(copy)",
        # As the Lua file has it for requests that it reads.
        "    http-request set-var(txn.kind) int(2) if { path /v1/messages }",
        "    http-request set-var(txn.kind) int(3) if { path /v1/responses }",
        "    http-request del-header X-Slipway-Shadow",
        "    use_backend %[var(txn.to)]",
    ]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _arrival() -> list[str]:
    return [
        "http-request set-var(txn.id) uuid()",
        "http-request set-var(txn.id) req.fhdr(X-Request-Id) if { req.fhdr(X-Request-Id) -m reg ^[A-Za-z0-9._-]{1,64}$ }",
        "http-request set-header X-Request-Id %[var(txn.id)]",
        "http-request set-var(txn.path) path",
        "http-request return status 200 content-type text/plain string ok if { path /healthz }",
        *refuse(
            404,
            "unknown_path",
            "There is no %[path,json(utf8s)] here. Models answer under /v1/.",
            "!{ path_beg /v1/ } !{ path /tokenize }",
        ),
    ]


def _identity(listener: Listener) -> list[str]:
    fields = ["key", "team", "scope", "expires"]
    fields += [f"{whose}_{what}" for whose in ("key", "team") for what in _LIMIT_FIELDS]
    return [
        *refuse(
            401,
            "ambiguous_api_key",
            "There is more than one Authorization. Send a single key.",
            "{ req.hdr_cnt(Authorization) gt 1 }",
            headers=("WWW-Authenticate Bearer",),
        ),
        "http-request set-var(txn.secret) http_auth_bearer",
        # What Anthropic's clients send.
        "http-request set-var(txn.secret) req.fhdr(x-api-key) if !{ var(txn.secret) -m found }",
        *refuse(
            401,
            "missing_api_key",
            "No API key. Send it as “Authorization: Bearer KEY”.",
            "!{ var(txn.secret) -m found }",
            headers=("WWW-Authenticate Bearer",),
        ),
        f"http-request set-var(txn.known) var(txn.secret),sha2(256),hex,lower,{_map(listener, 'keys')}",
        "http-request unset-var(txn.secret)",
        *refuse(
            401,
            "invalid_api_key",
            "This API key is not known, or no longer valid.",
            "!{ var(txn.known) -m found }",
            headers=("WWW-Authenticate Bearer",),
        ),
        *[f"http-request set-var(txn.{name}) var(txn.known),field({at},;)" for at, name in enumerate(fields, start=1)],
        *refuse(
            401,
            "expired_api_key",
            "This API key has expired.",
            "{ var(txn.expires),add(0) gt 0 } { date(),sub(txn.expires) ge 0 }",
            headers=("WWW-Authenticate Bearer",),
        ),
        "http-request del-header Authorization",
        "http-request del-header x-api-key",
        # Answers are read on their way, so they must not be compressed.
        "http-request del-header Accept-Encoding",
    ]


def _models(  # the list that a key may use, without a process behind it
) -> list[str]:
    return [
        "http-request set-var(txn.named) path,regsub(^/v1/models/,),url_dec if { path_beg /v1/models/ } METH_GET",
    ]


def _map(listener: Listener, name: str, kind: str = "map_str", default: str = "") -> str:
    return f"{kind}({listener.directory}/maps/{name}.map{',' + default if default else ''})"


def _body(listener: Listener) -> list[str]:
    limit = listener.body_limit_bytes
    too_large = f"The body is larger than {limit:,} bytes."
    paths = " ".join(PATHS)
    return [
        f"http-request set-var(txn.list) var(txn.scope),{_map(listener, 'lists')} if {{ path /v1/models }} METH_GET",
        "http-request return status 200 content-type application/json lf-string "
        '\'{"object":"list","data":[%[var(txn.list)]]}\' if { path /v1/models } METH_GET',
        f"http-request set-var(txn.route) var(txn.named),{_map(listener, 'names')} if {{ var(txn.named) -m found }}",
        f"http-request set-var(txn.grant) var(txn.scope),concat(/,txn.route),{_map(listener, 'grants')}"
        " if { var(txn.named) -m found }",
        f"http-request set-var(txn.shown) var(txn.named),{_map(listener, 'models')} if {{ var(txn.grant) -m found }}",
        "http-request return status 200 content-type application/json lf-string %[var(txn.shown)]"
        " if { var(txn.shown) -m found }",
        *refuse(
            404,
            "model_not_found",
            "The model %[var(txn.named),json(utf8s)] does not exist, or this key may not use it.",
            "{ var(txn.named) -m found }",
        ),
        *refuse(404, "unknown_path", "There is no %[path,json(utf8s)] here.", f"!{{ path {paths} }}"),
        *refuse(405, "method_not_allowed", "Use POST here.", "!METH_POST", headers=("Allow POST",)),
        *refuse(413, "body_too_large", too_large, f"{{ req.body_size gt {limit} }}"),
        f"http-request wait-for-body time 30s at-least {limit + 1}",
        *refuse(413, "body_too_large", too_large, f"{{ req.body_len gt {limit} }}"),
        "http-request lua.slipway_read",
        *refuse(400, "invalid_request", "%[var(txn.bad)]", "{ var(txn.bad) -m found }"),
        *refuse(400, "invalid_request", "The body could not be read.", "!{ var(txn.model) -m found }"),
    ]


def _routing(gateway: Gateway) -> list[str]:
    listener = gateway.listener
    fields = [f"route_{what}" for what in _LIMIT_FIELDS] + ["context", "cap", "assumed", "long", "kept"]
    fields += ["controls", "exact", "deadline"]
    no_model = "The model %[var(txn.model),json(utf8s)] does not exist."
    foreign = "This API key may not use the model %[var(txn.model),json(utf8s)]."
    no_version = "The model %[var(txn.model),json(utf8s)] has no version %[req.fhdr(X-Model-Version),json(utf8s)]."
    return [
        f"http-request set-var(txn.route) var(txn.model),{_map(listener, 'names')}",
        *refuse(404, "model_not_found", no_model, "!{ var(txn.route) -m found }"),
        f"http-request set-var(txn.grant) var(txn.scope),concat(/,txn.route),{_map(listener, 'grants')}",
        *refuse(403, "model_not_allowed", foreign, "!{ var(txn.grant) -m found }"),
        f"http-request set-var(txn.settings) var(txn.route),{_map(listener, 'routes')}",
        *[
            f"http-request set-var(txn.{name}) var(txn.settings),field({at},;)"
            for at, name in enumerate(fields, start=1)
        ],
        "http-request set-var(txn.output) var(txn.asked)",
        "http-request set-var(txn.output) var(txn.assumed),add(0) if !{ var(txn.output) -m found }",
        "http-request set-var(txn.slot) rand(100)",
        "http-request set-var(txn.slot) req.fhdr(X-Session-Id),xxh32,mod(100)"
        " if { var(txn.kept) -m str 1 } { req.fhdr(X-Session-Id) -m found }",
        f"http-request set-var(txn.chosen) var(txn.route),concat(@,txn.slot),{_map(listener, 'slots')}",
        "http-request set-var(txn.version) req.fhdr(X-Model-Version)",
        f"http-request set-var(txn.pinned) var(txn.route),concat(@v:,txn.version),{_map(listener, 'pins')}"
        " if { var(txn.version) -m found }",
        *refuse(404, "version_not_found", no_version, "{ var(txn.version) -m found } !{ var(txn.pinned) -m found }"),
        f"http-request set-var(txn.pinned) var(txn.route),concat(@long),{_map(listener, 'pins')}"
        " if { var(txn.long),add(0) gt 0 } { var(txn.prompt),sub(txn.long) gt 0 } !{ var(txn.version) -m found }",
        "http-request set-var(txn.chosen) var(txn.pinned) if { var(txn.pinned) -m found }",
        *_fallbacks(gateway),
    ]


def _careful_reading(listener: Listener) -> list[str]:
    """What only some routes ask for: control characters looked for, prompts counted by the engine's tokenizer."""
    return [
        "http-request lua.slipway_controls if { var(txn.suspect) -m found } !{ var(txn.controls) -m str pass }",
        *refuse(
            400,
            "control_characters",
            "The request holds control characters, which this model’s route refuses. Tabs and line ends may stand.",
            "{ var(txn.controls) -m str refuse } { var(txn.has_controls) -m found }",
        ),
        f"http-request set-var(txn.tokenizer) var(txn.to),{_map(listener, 'tokenizers')} if {{ var(txn.exact) -m str 1 }}",
        "http-request lua.slipway_count if { var(txn.tokenizer) -m found }",
        "http-request unset-var(txn.tokenizer)",
    ]


def _fallbacks(gateway: Gateway) -> list[str]:
    """Where a request goes whose backend has no server, or too many waiting; then the refusals if nothing is left."""
    rules: list[str] = []
    by_number = {route.number: route for route in gateway.routes if not route.adapter}
    for route in gateway.routes:
        for target in route.targets:
            open_ = f"{{ nbsrv({target.backend}) gt 0 }} {{ queue({target.backend}) lt {route.queue_limit} }}"
            chosen = f"{{ var(txn.chosen) -m str {target.backend} }}"
            rules.append(f"http-request set-var(txn.to) str({target.backend}) if {chosen} {open_}")
            for other in _instead(route, target, by_number):
                there = (
                    f"!{{ var(txn.pinned) -m found }} {{ str({other.backend}),{_map(gateway.listener, 'open')} -m found }} "
                    f"{{ nbsrv({other.backend}) gt 0 }} {{ queue({other.backend}) lt {route.queue_limit} }}"
                )
                free = "!{ var(txn.to) -m found }"
                rules.append(f"http-request set-var(txn.fallback) str({other.deployment}) if {chosen} {free} {there}")
                rules.append(f"http-request set-var(txn.to) str({other.backend}) if {chosen} {free} {there}")
            full = f"{{ nbsrv({target.backend}) gt 0 }} {{ queue({target.backend}) ge {route.queue_limit} }}"
            message = f"%[queue({target.backend})] requests wait for this model already (limit {route.queue_limit})."
            where = f"{chosen} !{{ var(txn.to) -m found }} {full}"
            rules += refuse(429, "queue_full", message, where, headers=("Retry-After 5",), kind="rate_limit_error")
    none = "No instance of %[var(txn.model),json(utf8s)] is ready. Try again shortly."
    return [
        *rules,
        *refuse(503, "no_instance", none, "!{ var(txn.to) -m found }", headers=("Retry-After 5",), kind="api_error"),
    ]


def _instead(route: Route, target: Target, by_number: dict[int, Route]) -> Iterable[Target]:
    """Other targets of the same route first, then those of its fallback. Whether their weight lets them is asked then."""
    yield from (one for one in route.targets if one is not target and not one.is_long_lane)
    other = by_number.get(route.fallback or 0)
    if other and other is not route:
        yield from (one for one in other.targets if not one.is_long_lane)


def _admission(gateway: Gateway) -> list[str]:
    listener = gateway.listener
    return [
        *_cost_checks(),
        *[rule for at, who in enumerate(("key", "team", "route")) for rule in _tracking(at, who)],
        *_budget(listener),
        *[rule for at, who in enumerate(("key", "team", "route")) for rule in _rate_checks(listener, at, who)],
        *[f"http-request sc-inc-gpc(0,{at})" for at in range(3)],
        *[f"http-request sc-add-gpc(0,{at + 3}) var(txn.cost)" for at in range(3)],
        "http-request set-var(txn.charged) var(txn.cost)",
    ]


def _tracking(at: int, who: str) -> list[str]:
    """Count only what has a limit: each counter costs every request some microseconds."""
    track = f"http-request track-sc{at} var(txn.{who}) table requests"
    return [
        f"{track} if {{ var(txn.{who}_requests),add(0) gt 0 }}",
        f"{track} if {{ var(txn.{who}_at_once),add(0) gt 0 }}",
        f"http-request track-sc{at + 3} var(txn.{who}) table tokens if {{ var(txn.{who}_tokens),add(0) gt 0 }}",
    ]


def _cost_checks() -> list[str]:
    over_cap = "max_tokens is %[var(txn.asked)]; this model's limit is %[var(txn.cap)]."
    too_long = (
        "The request needs about %[var(txn.size)] tokens (%[var(txn.prompt)] of prompt); "
        "the model's context has %[var(txn.context)]."
    )
    counted = "The request needs %[var(txn.size)] tokens (%[var(txn.prompt)] of prompt, as the engine counts them); "
    counted += "the model's context has %[var(txn.context)]."
    over = "{ var(txn.context),add(0) gt 0 } { var(txn.size),sub(txn.context) gt 0 }"
    return [
        *refuse(
            400,
            "max_tokens_over_cap",
            over_cap,
            "{ var(txn.cap),add(0) gt 0 } { var(txn.asked) -m found } { var(txn.asked),sub(txn.cap) gt 0 }",
        ),
        "http-request set-var(txn.size) var(txn.prompt)",
        "http-request set-var(txn.size) var(txn.prompt),add(txn.asked) if { var(txn.asked) -m found }",
        *refuse(413, "context_exceeded", counted, f"{over} {{ var(txn.counted) -m found }}"),
        *refuse(413, "context_exceeded", too_long, f"{over} !{{ var(txn.counted) -m found }}"),
        "http-request set-var(txn.cost) var(txn.output),mul(txn.choices),add(txn.prompt)",
    ]


def _budget(listener: Listener) -> list[str]:
    rules = []
    words = {"key": "this key", "team": "this team", "route": "this model"}
    for who in words:
        rules += [
            f"http-request set-var(txn.until) var(txn.{who}),{_map(listener, 'spent', 'map_str_int', '0')}",
            "http-request set-var(txn.retry) date(),neg,add(txn.until)",
            *refuse(
                429,
                f"{who}_daily_budget",
                f"The daily token budget of {words[who]} is used up.",
                "{ var(txn.until),add(0) gt 0 } { var(txn.retry),add(0) gt 0 }",
                headers=("Retry-After %[var(txn.retry)]",),
                kind="rate_limit_error",
            ),
        ]
    return rules


def _rate_checks(listener: Listener, at: int, who: str) -> list[str]:
    """Concurrency, requests and tokens of one key, team or route; the counters are `at` and `at + 3`."""
    requests, tokens, at_once = (f"txn.{who}_{what}" for what in _LIMIT_FIELDS)
    known = "429"
    words = {"key": "This key", "team": "This key’s team", "route": "This model"}[who]
    return [
        *refuse(
            int(known),
            f"{who}_concurrency",
            f"{words} may have %[var({at_once})] requests at a time.",
            f"{{ var({at_once}),add(0) gt 0 }} {{ sc_conn_cur({at}),sub({at_once}) gt 0 }}",
            headers=("Retry-After 1",),
            kind="rate_limit_error",
        ),
        *refuse(
            int(known),
            f"{who}_requests_per_minute",
            f"{words} may make %[var({requests})] requests a minute.",
            f"{{ var({requests}),add(0) gt 0 }} {{ sc_gpc_rate(0,{at}),sub({requests}) ge 0 }}",
            headers=("Retry-After %[var(txn.retry)]",),
            kind="rate_limit_error",
            before=(f"http-request set-var(txn.retry) int(60),div({requests}),add(1)",),
        ),
        f"http-request set-var(txn.fix) var(txn.{who}),{_map(listener, 'corrections', 'map_str_int', '0')}",
        f"http-request set-var(txn.used) sc_gpc_rate(0,{at + 3}),add(txn.fix)",
        f"http-request set-var(txn.over) var(txn.used),add(txn.cost),sub({tokens})",
        *refuse(
            int(known),
            f"{who}_tokens_per_minute",
            f"{words} may take %[var({tokens})] tokens in {BURST_SECONDS} s; %[var(txn.used)] are taken, "
            "and this request may need %[var(txn.cost)].",
            f"{{ var({tokens}),add(0) gt 0 }} {{ var(txn.over),add(0) gt 0 }}",
            headers=("Retry-After %[var(txn.retry)]",),
            kind="rate_limit_error",
            before=(f"http-request set-var(txn.retry) var(txn.over),mul({BURST_SECONDS}),div({tokens}),add(1)",),
        ),
    ]


def _backend(route: Route, target: Target, *, servers: bool) -> list[str]:
    balance = {
        "leastconn": ["balance leastconn"],
        "session": ["balance hash req.fhdr(X-Session-Id)", "hash-type consistent", "hash-balance-factor 150"],
        "prefix": [
            "http-request lua.slipway_prefix",
            "balance hash var(txn.prefix)",
            "hash-type consistent",
            "hash-balance-factor 150",
        ],
    }[route.balance]
    lines = [
        f"# {target.deployment} behind {route.names[0]}",
        f"backend {target.backend}",
        *[f"    {line}" for line in balance],
        f"    timeout queue {route.queue_seconds}s",
        # An answer that isn't streamed says nothing until it is whole.
        f"    timeout server {min(route.silence_seconds, route.deadline_seconds or route.silence_seconds)}s",
        "    timeout check 700ms",
        "    option httpchk GET /health",
        # To ask another instance again after a failure, HAProxy copies its whole buffer first: only where there is another.
        "    http-request disable-l7-retry if { nbsrv lt 2 }",
        f'    http-request set-header Authorization "Bearer {target.engine_key}"',
        f"    default-server {check_of(target.backend)} maxconn {target.in_flight_each} slowstart 10s",
    ]
    return lines + [f"    {server_line(server)}" for server in (target.servers if servers else ())]


def server_line(server: Server) -> str:
    """A server as it stands in the file."""
    return f"server {server.name} {_host(server.address)}:{server.port}" + (" disabled" if server.draining else "")


def files(gateway: Gateway) -> dict[str, str]:
    """All files of the gateway's folder, by their name in it."""
    tables = {f"maps/{name}.map": maps.text(entries) for name, entries in maps.build(gateway).items()}
    return {**tables, "haproxy.cfg": render(gateway)}
