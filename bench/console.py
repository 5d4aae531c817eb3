"""A console of its own for measurements, with the cached engine and model."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tests.engine import KEY, cache
from tests.live.harness import LiveConsole, wait_for

MODEL = "SmolLM2-135M-Instruct"
ARGUMENTS = ["--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "4"]


@dataclass
class Bench:
    """The console and what measurements do with it."""

    console: LiveConsole
    seconds: int = 60
    """How long hundreds of engines are watched."""

    @property
    def engine(self) -> Path:
        """The environment that holds the engine, with its `bin` and its schema."""
        known = json.loads((cache() / "engines" / KEY / "engine.json").read_text())
        return Path(known["directory"])

    @property
    def model(self) -> Path:
        return cache() / "models" / MODEL

    def prepare(self) -> None:
        """Start the console, sign in, register the model."""
        for name in ("engines", "models"):
            (self.console.home / name).symlink_to(cache() / name)
        self.console.up()
        self.console.add_person("ada", "admin")
        self.console.sign_in("ada")
        host = self.console.one("select id from fleet_host where name = 'local'")
        self.console.post("/models/new/", {"name": MODEL, "host": host, "path": str(self.model.resolve())})
        wait_for("the copy is verified", lambda: self._id("catalog_copy", "state = 'verified'"), seconds=120)
        wait_for("the engine is known", lambda: self._id("fleet_engine", "present"), seconds=60)

    def _id(self, table: str, condition: str) -> int | None:
        value: int | None = self.console.one(f"select id from {table} where {condition} order by id desc")
        return value

    def deploy(self, name: str) -> float:
        """Send the form; returns the seconds from the click until the instance is ready."""
        form = {
            "name": name, "copy": self._id("catalog_copy", "state = 'verified'"), "engine": self._id("fleet_engine", "present"),
            "arguments": " ".join(ARGUMENTS), "reason": "bench",
        }  # fmt: skip
        self.console.get("/deployments/new/")
        began = time.monotonic()
        answer = self.console.post("/deployments/new/", form)
        job = wait_for(f"the job of {name}", lambda: self._job(name), seconds=10, every=0.02)
        wait_for(f"{name} is ready: {answer.status_code}", lambda: self._ended(job), seconds=300, every=0.02)
        seconds = time.monotonic() - began
        self.console.wait_job(job, seconds=1)
        return seconds

    def _job(self, name: str) -> int | None:
        value: int | None = self.console.one("select id from jobs_job where title = ?", f"Deploy {name}")
        return value

    def _ended(self, job: int) -> bool:
        return self.console.one("select state from jobs_job where id = ?", job) in ("succeeded", "failed", "cancelled")

    def stop(self, name: str) -> None:
        """Stop a deployment and wait until nothing of it runs."""
        pk = self.console.one("select id from deployments_deployment where name = ?", name)
        self.console.post(f"/deployments/{pk}/stop/", {"reason": "bench"})
        wait_for(
            f"{name} stops",
            lambda: self.console.one("select state from deployments_deployment where id = ?", pk) == "stopped",
            seconds=60,
        )

    def attempt(self, name: str) -> tuple[int, Path]:
        """Id and log file, on the host, of a deployment's newest attempt."""
        pk, number, uuid = self.console.rows(
            "select a.id, a.number, i.uuid from deployments_attempt a join deployments_instance i on i.id = a.instance_id "
            "join deployments_deployment d on d.id = i.deployment_id where d.name = ? order by a.id desc",
            name,
        )[0]
        folder = self.console.home / "hosts" / "local" / "state" / "instances" / dashed(uuid)
        return pk, folder / "attempts" / f"{number:04}" / "log"

    def cookies(self) -> dict[str, str]:
        """The session of the person who is signed in."""
        assert self.console.client
        return dict(self.console.client.cookies)


def dashed(uuid: str) -> str:
    """A UUID as SQLite stores it, with its hyphens."""
    text = uuid.replace("-", "")
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
