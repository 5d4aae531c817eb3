"""Models that make no text, deployed like any other: validated, warmed up and asked for vectors, through the gateway too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.gateway_clients import Served, serve
from tests.live.harness import LiveConsole
from tests.live.pooling_models import HIDDEN, classifying_model, embedding_model
from tests.live.test_adapters import add_model, client

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]

ARGUMENTS = "--enforce-eager --max-model-len 256 --max-num-seqs 4"


def gives_vectors(served: Served) -> bool:
    body = {"model": served.route, "input": "a ferry"}
    return client(served.url, served.secret).post("/v1/embeddings", json=body).status_code == 200


def ready(served: Served) -> bool:
    query = "select count(*) from deployments_instance where deployment_id = ? and state = 'ready'"
    return bool(served.console.one(query, served.deployment))


@pytest.mark.parametrize(
    ("make", "path", "numbers"),
    [(embedding_model, "/v1/embeddings", HIDDEN), (classifying_model, "/pooling", 2)],
    ids=["embeddings", "classes"],
)
def test_a_model_that_pools_gets_ready_and_its_vectors_come_through_the_gateway(
    live_console: LiveConsole, tmp_path: Path, make: Callable[[Path, Path], None], path: str, numbers: int
) -> None:
    console, name = live_console, make.__name__.replace("_", "-")
    console.sign_in("ada")
    make(engine_cache() / "models" / MODEL, tmp_path / name)
    revision = add_model(console, name, tmp_path / name)
    copy = console.one("select id from catalog_copy where revision_id = ?", revision)
    served = serve(
        console, name, ENGINE, int(copy), ARGUMENTS, asked=gives_vectors if path.startswith("/v1") else ready
    )
    try:
        rows = json.loads(console.one("select result from jobs_step where kind = 'validate' order by id desc limit 1"))[
            "checks"
        ]
        outcomes = {row["name"]: row["outcome"] for row in rows}
        assert outcomes.keys() == {"tokenizer", "vectors", "weights", "lengths"}
        assert outcomes["vectors"] == "ok"
        fact = next(row["fact"] for row in rows if row["name"] == "vectors")
        assert fact.startswith(f"{path} gives {numbers} numbers")
        if path == "/v1/embeddings":
            gateway = client(served.url, served.secret)
            body = {"model": served.route, "input": ["a ferry", "a mountain", "a ferry"]}
            first, other, again = (one["embedding"] for one in gateway.post(path, json=body).json()["data"])
            assert len(first) == numbers
            assert first != other
            assert first == pytest.approx(again, rel=0.05, abs=0.05)
    finally:
        console.post(f"/deployments/{served.deployment}/stop/", {"reason": "seen"})
