"""Every kind of channel against a receiver that listens on this machine, with failures; nothing is sent twice."""

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone

from console.access.models import User
from console.alerts import sending, services
from console.alerts.models import Alert, Channel, Delivery
from console.common.secrets import encrypt
from console.deployments.models import Instance
from tests.alerts.conftest import Stage

pytestmark = pytest.mark.django_db(transaction=True)


class Receiver:
    """Records what is posted to it; answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.answer = 200, b"{}"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", str(len(receiver.answer)))
                self.end_headers()
                self.wfile.write(receiver.answer)

            def log_message(self, *_arguments: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _path, _headers, body in self.requests]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Mailbox:
    """A small SMTP server."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.mails: list[bytes] = []
        self.refuse = refuse
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                self._talk(stream)

    def _talk(self, stream: Any) -> None:
        def say(text: str) -> None:
            stream.write(text.encode() + b"\r\n")
            stream.flush()

        say("220 here")
        while line := stream.readline():
            word = line.strip().upper()
            if word.startswith(b"DATA"):
                say("354 go on")
                mail = b""
                while (part := stream.readline()) != b".\r\n":
                    mail += part
                self.mails.append(mail)
                say("250 taken")
            elif word.startswith(b"RCPT") and self.refuse:
                say("550 no such person")
            elif word.startswith(b"QUIT"):
                say("221 bye")
                return
            else:
                say("250 ok")


def channel(kind: str, receiver: Receiver, *, secret: str = "", name: str = "", **more: Any) -> Channel:
    settings = {} if kind in ("slack", "wecom") else {"url": receiver.url}
    stored = receiver.url if kind in ("slack", "wecom") else secret
    return Channel.objects.create(
        team_id=1, name=name or kind, kind=kind, settings=settings, secret=encrypt(stored) if stored else "", **more
    )


def crash(stage: Stage) -> Alert:
    stage.only("crashed")
    Instance.objects.filter(pk=stage.instance.pk).update(state="crashed", failure={"message": "CUDA out of memory"})
    stage.round()
    (alert,) = stage.living("crashed")
    return alert


def recover(stage: Stage) -> None:
    Instance.objects.filter(pk=stage.instance.pk).update(state="ready", failure=None)
    stage.rounds(90)


def test_a_webhook_is_signed_and_says_what_since_when_why_and_where(stage: Stage, receiver: Receiver) -> None:
    channel("webhook", receiver, secret="sesame")
    alert = crash(stage)
    assert sending.send_due() == 1
    (_path, headers, body) = receiver.requests[0]
    stamp, signature = (part.split("=")[1] for part in headers["x-slipway-signature"].split(","))
    assert signature == hmac.new(b"sesame", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    content = json.loads(body)
    assert content["event"] == "opened"
    (said,) = content["alerts"]
    assert said["name"] == str(stage.instance)
    assert said["cause"] == "CUDA out of memory"
    assert said["url"].endswith(f"/alerts/{alert.pk}/")
    assert said["opened_at"]
    recover(stage)
    sending.send_due()
    assert receiver.bodies[1]["event"] == "closed"
    assert receiver.bodies[1]["alerts"][0]["closed_at"]


def test_slack_gets_text_and_a_link(stage: Stage, receiver: Receiver) -> None:
    channel("slack", receiver)
    crash(stage)
    sending.send_due()
    (body,) = receiver.bodies
    assert "Instance crashed" in body["text"]
    text = body["attachments"][0]["blocks"][0]["text"]["text"]
    assert "CUDA out of memory" in text
    assert "|Open in Slipway>" in text


@pytest.mark.parametrize("kind", ["feishu", "dingtalk"])
def test_feishu_and_dingtalk_sign_each_in_its_own_way(stage: Stage, receiver: Receiver, kind: str) -> None:
    channel(kind, receiver, secret="SECabc")
    crash(stage)
    sending.send_due()
    path, _headers, raw = receiver.requests[0]
    body = json.loads(raw)
    if kind == "feishu":
        expected = hmac.new(f"{body['timestamp']}\nSECabc".encode(), b"", hashlib.sha256).digest()
        assert base64.b64decode(body["sign"]) == expected
        texts = json.dumps(body["content"]["post"]["zh_cn"])
    else:
        query = parse_qs(urlsplit(path).query)
        text = f"{query['timestamp'][0]}\nSECabc".encode()
        expected = hmac.new(b"SECabc", text, hashlib.sha256).digest()
        assert base64.b64decode(query["sign"][0]) == expected
        texts = body["markdown"]["text"]
    assert "CUDA out of memory" in texts


@pytest.mark.parametrize(
    ("kind", "answer"), [("feishu", b'{"code": 19021}'), ("dingtalk", b'{"errcode": 310000}'), ("wecom", b'{"errcode": 93000}')]
)  # fmt: skip
def test_a_refusal_that_comes_with_status_200_is_a_failure(
    stage: Stage, receiver: Receiver, kind: str, answer: bytes
) -> None:
    receiver.answer = answer
    made = channel(kind, receiver)
    crash(stage)
    sending.send_due()
    made.refresh_from_db()
    assert made.failing_since is not None
    assert Delivery.objects.get().state == "waiting"


def test_wecom_gets_markdown(stage: Stage, receiver: Receiver) -> None:
    channel("wecom", receiver)
    crash(stage)
    sending.send_due()
    assert "CUDA out of memory" in receiver.bodies[0]["markdown"]["content"]


def test_pagerduty_triggers_and_resolves_one_incident(stage: Stage, receiver: Receiver) -> None:
    channel("pagerduty", receiver, secret="routing")
    crash(stage)
    sending.send_due()
    recover(stage)
    sending.send_due()
    first, second = receiver.bodies
    assert (first["event_action"], second["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == second["dedup_key"]
    assert first["routing_key"] == "routing"
    assert first["payload"]["severity"] == "critical"


def test_alertmanager_gets_its_own_format(stage: Stage, receiver: Receiver) -> None:
    channel("alertmanager", receiver)
    crash(stage)
    sending.send_due()
    assert receiver.requests[0][0] == "/hook/api/v2/alerts"
    (alert,) = receiver.bodies[0]
    assert alert["labels"]["alertname"] == "Instance crashed"
    # Without an end, Alertmanager would call it over after five minutes.
    assert datetime.fromisoformat(alert["endsAt"]) > timezone.now() + timedelta(days=7)
    recover(stage)
    sending.send_due()
    assert datetime.fromisoformat(receiver.bodies[1][0]["endsAt"]) <= timezone.now()


def test_pagerduty_goes_on_with_an_incident_whose_neighbour_is_over(stage: Stage, receiver: Receiver) -> None:
    channel("pagerduty", receiver, secret="routing")
    two_instances(stage)
    stage.only("crashed")
    Instance.objects.update(state="crashed")
    stage.round()
    sending.send_due()
    Instance.objects.filter(pk=stage.instance.pk).update(state="ready")
    stage.rounds(120)
    sending.send_due()
    first, second, over = receiver.bodies
    assert first["dedup_key"] != second["dedup_key"]
    assert (over["event_action"], over["dedup_key"]) == ("resolve", first["dedup_key"])


def two_instances(stage: Stage) -> None:
    first = stage.instance
    Instance.objects.create(
        deployment=first.deployment, spec=first.spec, host=first.host, number=2, port=18002, state="crashed",
        ordered=True,
    )  # fmt: skip


def mail_channel(mailbox: Mailbox) -> Channel:
    settings = {
        "server": "127.0.0.1", "port": mailbox.port, "security": "none", "user": "",
        "sender": "slipway@example.com", "recipients": ["on-call@example.com"],
    }  # fmt: skip
    return Channel.objects.create(team_id=1, name="mail", kind="email", settings=settings)


def test_mail_arrives_with_subject_and_text(stage: Stage) -> None:
    mailbox = Mailbox()
    mail_channel(mailbox)
    crash(stage)
    sending.send_due()
    mail = message_from_bytes(mailbox.mails[0])
    assert mail["To"] == "on-call@example.com"
    assert "Instance crashed" in mail["Subject"]
    assert b"CUDA out of memory" in (mail.get_payload(decode=True) or b"")


def test_a_mail_server_that_refuses_is_a_failure(stage: Stage) -> None:
    made = mail_channel(Mailbox(refuse=True))
    crash(stage)
    sending.send_due()
    made.refresh_from_db()
    assert "550" in made.last_error or "refused" in made.last_error.lower()


def test_a_failure_is_tried_again_with_growing_pauses_until_it_is_given_up(stage: Stage, receiver: Receiver) -> None:
    receiver.status = 503
    made = channel("webhook", receiver)
    crash(stage)
    pauses = []
    for _ in range(sending.MOST_ATTEMPTS):
        assert sending.send_due() == 1
        assert sending.send_due() == 0
        delivery = Delivery.objects.get()
        pauses.append((delivery.due_at - timezone.now()).total_seconds())
        Delivery.objects.update(due_at=timezone.now())
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(10, abs=3)
    assert Delivery.objects.get().state == "failed"
    assert len({headers["idempotency-key"] for _path, headers, _body in receiver.requests}) == 1
    made.refresh_from_db()
    assert "503" in made.last_error


def test_a_dead_channel_raises_an_alert_that_goes_through_another(stage: Stage, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    dead = Channel.objects.create(
        team_id=1, name="dead", kind="webhook", settings={"url": f"http://127.0.0.1:{port}/"}, severity="critical"
    )
    crash(stage)
    channel("webhook", receiver)
    sending.send_due()
    dead.refresh_from_db()
    assert dead.failing_since is not None
    stage.only("channel").__class__.objects.filter(key="channel").update(enabled=True)
    stage.round()
    stage.round()
    sending.send_due()
    said = [body["alerts"][0] for body in receiver.bodies]
    assert [one["name"] for one in said] == ["dead"]
    assert not Delivery.objects.filter(channel=dead, alerts__rule__key="channel").exists()


def test_nothing_is_sent_twice_after_a_restart(stage: Stage, receiver: Receiver) -> None:
    channel("webhook", receiver)
    crash(stage)
    sending.send_due()
    for _ in range(3):  # rounds of a process that starts anew
        stage.round()
        sending.send_due()
    assert len(receiver.requests) == 1
    # A process that died while it sent: nobody knows whether it arrived, so it is not sent again.
    Delivery.objects.update(state="sending", claimed_at=timezone.now() - timedelta(hours=1))
    sending.send_due()
    assert Delivery.objects.get().state == "unsure"
    assert len(receiver.requests) == 1


def test_two_processes_that_send_at_once_send_once(stage: Stage, receiver: Receiver) -> None:
    channel("webhook", receiver)
    crash(stage)
    from django.db import connection

    def send() -> None:
        sending.send_due()
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.requests) == 1


def test_alerts_of_one_rule_about_one_deployment_are_one_message(stage: Stage, receiver: Receiver) -> None:
    channel("webhook", receiver)
    two_instances(stage)
    stage.only("crashed")
    Instance.objects.update(state="crashed")
    stage.round()
    sending.send_due()
    (body,) = receiver.bodies
    assert len(body["alerts"]) == 2
    assert "and 1 more" in body["title"]


def test_what_nobody_acknowledges_is_escalated_once(stage: Stage, receiver: Receiver, operator: User) -> None:
    channel("webhook", receiver, for_escalations=True)
    crash(stage)
    sending.send_due()
    assert not receiver.requests
    stage.round(901)
    stage.round()
    sending.send_due()
    assert [body["event"] for body in receiver.bodies] == ["escalated"]


def test_an_acknowledged_alert_is_not_escalated(stage: Stage, receiver: Receiver, operator: User) -> None:
    channel("webhook", receiver, for_escalations=True)
    services.acknowledge(crash(stage), actor=operator, reason="on it")
    stage.round(901)
    sending.send_due()
    assert not receiver.requests


def test_a_channel_gets_only_what_is_severe_enough(stage: Stage, receiver: Receiver) -> None:
    channel("webhook", receiver, severity="critical")
    stage.only("kv-high")
    stage.tell(kv_usage=0.95)
    stage.rounds(60)
    assert stage.living("kv-high")
    assert not Delivery.objects.exists()


def test_the_test_button_says_what_came_of_it(receiver: Receiver, admin: User) -> None:
    made = channel("webhook", receiver)
    assert services.test_channel(made, actor=admin) == ""
    assert receiver.bodies[0]["event"] == "test"
    receiver.status = 404
    assert "404" in services.test_channel(made, actor=admin)
