"""One message as each kind of channel wants it: address, headers and body. What, since when, why, and where to look."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.errors import Refused

JSON = {"Content-Type": "application/json"}
_OPEN_DAYS = 30
"""Alertmanager holds what nobody ends for so long."""


@dataclass(frozen=True)
class Said:
    """One alert, frozen for sending."""

    fingerprint: str
    rule: str
    name: str
    summary: str
    cause: str
    severity: str
    opened_at: datetime
    closed_at: datetime | None
    url: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Message:
    """What is sent: `opened`, `closed`, `escalated` or `test`, and about which alerts."""

    event: str
    alerts: Sequence[Said]
    key: str
    """The same for each try: a receiver can tell a repetition by it."""

    @property
    def title(self) -> str:
        """The message in one line."""
        first = self.alerts[0]
        more = ""
        if (rest := len(self.alerts) - 1) > 0:
            more = " " + ngettext("and %d more", "and %d more", rest) % rest
        marks = {"closed": _("Over"), "escalated": _("Still open"), "test": _("Test")}
        mark = marks.get(self.event) or first.severity.capitalize()
        return f"[{mark}] {first.rule}: {first.name}{more}"

    @property
    def text(self) -> str:
        """The message in some lines of plain text."""
        return "\n\n".join("\n".join(self.lines_of(alert)) for alert in self.alerts)

    def lines_of(self, alert: Said) -> list[str]:
        """What, since when, why, and the link, of one alert."""
        lines = [f"{alert.name}: {alert.summary}"]
        opened = f"{timezone.localtime(alert.opened_at):%Y-%m-%d %H:%M:%S %Z}"
        if alert.closed_at:
            closed = f"{timezone.localtime(alert.closed_at):%Y-%m-%d %H:%M:%S %Z}"
            lines.append(_("From %(opened)s to %(closed)s") % {"opened": opened, "closed": closed})
        else:
            lines.append(_("Since %s") % opened)
        if alert.cause:
            lines.append(_("Cause: %s") % alert.cause)
        return [*lines, alert.url]


@dataclass(frozen=True)
class Request:
    """One HTTP request of a channel. `accepts` reads the answer: some services say no with status 200."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    accepts: Callable[[int, bytes], str]
    """Empty if the message was taken, else what was wrong."""


def request(kind: str, settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """The message for one kind of channel. `secret`: signing key or token, opened. Raises Refused for what can't be sent."""
    maker = _MAKERS.get(kind)
    if maker is None:
        raise Refused(_("There is no way to send to a channel of this kind."))
    return maker(settings, secret, message)


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _by_status(status: int, body: bytes) -> str:
    return (
        ""
        if 200 <= status < 300
        else _("It answered %(status)d: %(body)s")
        % {
            "status": status,
            "body": body[:200].decode("utf-8", "replace"),
        }
    )


def _by_code(*names: str) -> Callable[[int, bytes], str]:
    """Services that answer 200 with a code other than zero when they refuse."""

    def accepts(status: int, body: bytes) -> str:
        if problem := _by_status(status, body):
            return problem
        try:
            content = json.loads(body)
        except ValueError:
            return _("It answered something that is not JSON.")
        code = next((content[name] for name in names if name in content), 0) if isinstance(content, dict) else 0
        return "" if code in (0, "0") else _("It refused the message: %s") % body[:200].decode("utf-8", "replace")

    return accepts


def _plain(alert: Said) -> dict[str, Any]:
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule,
        "name": alert.name,
        "summary": alert.summary,
        "cause": alert.cause,
        "severity": alert.severity,
        "opened_at": alert.opened_at.isoformat(),
        "closed_at": alert.closed_at.isoformat() if alert.closed_at else None,
        "url": alert.url,
        "labels": dict(alert.labels),
    }


def _webhook(settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """`X-Slipway-Signature: t=SECONDS,v1=HEX`, an HMAC-SHA256 with the channel's key over `SECONDS.BODY`."""
    body = _json({"event": message.event, "title": message.title, "alerts": [_plain(one) for one in message.alerts]})
    stamp = str(int(time.time()))
    signature = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {**JSON, "Idempotency-Key": message.key}
    if secret:
        headers["X-Slipway-Signature"] = f"t={stamp},v1={signature}"
    return Request(settings["url"], body, headers, _by_status)


def _slack(_settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    colour = {"critical": "#c62828", "warning": "#a85f00"}.get(message.alerts[0].severity, "#5b6879")
    if message.event == "closed":
        colour = "#15803d"
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": _slack_text(message, one)}} for one in message.alerts
    ]
    body = {"text": message.title, "attachments": [{"color": colour, "blocks": blocks[:20]}]}
    return Request(secret, _json(body), JSON, _by_status)


def _slack_text(message: Message, alert: Said) -> str:
    *lines, url = [
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in message.lines_of(alert)
    ]
    return "\n".join([f"*{lines[0]}*", *lines[1:], f"<{url}|{_('Open in Slipway')}>"])


def _feishu(settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """A post to a bot of a group. With a signing key, the key of the HMAC is `SECONDS\\nKEY` and its text is empty."""
    content: list[list[dict[str, str]]] = []
    for alert in message.alerts:
        *lines, url = message.lines_of(alert)
        content += [[{"tag": "text", "text": line}] for line in lines]
        content.append([{"tag": "a", "text": _("Open in Slipway"), "href": url}])
    body: dict[str, Any] = {
        "msg_type": "post",
        "content": {"post": {"zh_cn": {"title": message.title, "content": content}}},
    }
    if secret:
        stamp = str(int(time.time()))
        digest = hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
        body |= {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}
    return Request(settings["url"], _json(body), JSON, _by_code("code", "StatusCode"))


def _dingtalk(settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """A message to a bot of a group. With a signing key the address carries time and HMAC over `MILLISECONDS\\nKEY`."""
    url = settings["url"]
    if secret:
        stamp = str(int(time.time() * 1000))
        digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
        joint = "&" if "?" in url else "?"
        url = f"{url}{joint}timestamp={stamp}&sign={quote_plus(base64.b64encode(digest))}"
    body = {"msgtype": "markdown", "markdown": {"title": message.title, "text": _markdown(message)}}
    return Request(url, _json(body), JSON, _by_code("errcode"))


def _wecom(_settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    text = _markdown(message).encode()[:4000].decode("utf-8", "ignore")
    body = {"msgtype": "markdown", "markdown": {"content": text}}
    return Request(secret, _json(body), JSON, _by_code("errcode"))


def _markdown(message: Message) -> str:
    parts = [f"### {message.title}"]
    for alert in message.alerts:
        *lines, url = message.lines_of(alert)
        parts += ["\n\n".join(lines), f"[{_('Open in Slipway')}]({url})"]
    return "\n\n".join(parts)


def _pagerduty(settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """One event of the Events API v2. Each alert is an incident, under its own fingerprint: `evaluation.announce`."""
    first = message.alerts[0]
    body = {
        "routing_key": secret,
        "event_action": "resolve" if message.event == "closed" else "trigger",
        "dedup_key": f"slipway-{first.fingerprint}",
        "payload": {
            "summary": message.title[:1024],
            "source": first.name,
            "severity": first.severity,
            "timestamp": first.opened_at.isoformat(),
            "custom_details": {"text": message.text, **first.labels},
        },
        "links": [{"href": first.url, "text": _("Open in Slipway")}],
    }
    return Request(settings["url"], _json(body), JSON, _by_status)


def _alertmanager(settings: Mapping[str, Any], secret: str, message: Message) -> Request:
    """The body of `POST /api/v2/alerts`. Without an end it would be over for Alertmanager after its `resolve_timeout`."""
    body = []
    far = timezone.now() + timedelta(days=_OPEN_DAYS)
    for alert in message.alerts:
        one = {
            "labels": {"alertname": alert.rule, "subject": alert.name, "severity": alert.severity, **alert.labels},
            "annotations": {"summary": alert.summary, "cause": alert.cause},
            "generatorURL": alert.url,
            "startsAt": alert.opened_at.isoformat(),
            "endsAt": (alert.closed_at or far).isoformat(),
        }
        body.append(one)
    headers = {**JSON, "Authorization": f"Bearer {secret}"} if secret else JSON
    return Request(f"{settings['url'].rstrip('/')}/api/v2/alerts", _json(body), headers, _by_status)


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], str, Message], Request]] = {
    "webhook": _webhook,
    "slack": _slack,
    "feishu": _feishu,
    "dingtalk": _dingtalk,
    "wecom": _wecom,
    "pagerduty": _pagerduty,
    "alertmanager": _alertmanager,
}
