"""Adding a model from a source: look it up, choose files and hosts, start the download."""

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, Team, User
from console.catalog import lookups
from console.catalog.models import Copy, Model, Source
from console.common.secrets import encrypt
from console.jobs.models import Job
from tests.factories import Fleet
from workers.weights import hub
from workers.weights.hub_errors import (
    GatedError,
    HubError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    TokenNeededError,
    UnauthorizedError,
    UnreachableError,
)
from workers.weights.hub_types import ConfigFacts, HubFile, Identity, RepositoryFacts, RevisionName, SearchHit

COMMIT = "c" * 40
FILES = (
    HubFile("config.json", 700, git_oid="a" * 40),
    HubFile("model.safetensors", 3 << 30, sha256="b" * 64),
    HubFile("pytorch_model.bin", 3 << 30, sha256="d" * 64),
    HubFile("original/consolidated.pth", 3 << 30, sha256="e" * 64),
)
FACTS = RepositoryFacts(
    "Qwen/Qwen3-0.6B", "main", COMMIT, FILES, license="apache-2.0", parameters=596_000_000,
    config=ConfigFacts("Qwen3ForCausalLM", "qwen3", "bfloat16", "", 40_960),
)  # fmt: skip


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def source(db: None) -> Source:
    return Source.objects.create(name="A hub", endpoint="https://hub.example")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the source answers; an error is raised. `asked` keeps what it was asked."""
    cache.clear()
    given: dict[str, Any] = {"lookup": FACTS, "search": (), "revisions": (RevisionName("main", COMMIT),), "asked": []}

    def answer(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            given["asked"].append((name, arguments, options))
            if isinstance(given[name], Exception):
                raise given[name]
            return given[name]

        return call

    for name in ("lookup", "search", "revisions", "whoami"):
        monkeypatch.setattr(hub, name, answer(name))
    return given


def wish(source: Source, fleet: Fleet, **changes: Any) -> dict[str, Any]:
    """What the form sends when its suggestion is taken."""
    return {
        "source": source.pk, "repository": FACTS.repository, "commit": COMMIT, "name": "Qwen3-0.6B",
        "hosts": [fleet.host.pk], "files": ["config.json", "model.safetensors"], "license": "apache-2.0",
        "idempotency_key": "key-1",
    } | changes  # fmt: skip


def test_what_it_is_stands_there_before_anything_is_fetched(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    answer = signed_in(admin).get(reverse("model_add"), {"source": source.pk, "q": "Qwen/Qwen3-0.6B"})
    page = answer.content.decode()
    for text in ("apache-2.0", "Qwen3ForCausalLM", "596 M", "bfloat16", "40,960 tokens", COMMIT[:12]):
        assert text in page
    chosen = {choice.file.path for choice in answer.context["choices"] if choice.chosen}
    assert chosen == {"config.json", "model.safetensors"}
    assert "3 GiB" in page
    assert not Job.objects.exists()


def test_a_lookup_waits_no_longer_than_a_page_may_take(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    signed_in(admin).get(reverse("model_add"), {"source": source.pk, "q": "Qwen/Qwen3-0.6B"})
    assert all(options["timeout_seconds"] <= 5 for _name, _arguments, options in answers["asked"])


def test_words_are_searched_for_and_hits_lead_to_their_lookup(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    answers["search"] = (SearchHit("Qwen/Qwen3-0.6B", downloads=9000, gated=True),)
    page = signed_in(admin).get(reverse("model_add"), {"source": source.pk, "q": "qwen small"}).content.decode()
    assert "q=Qwen/Qwen3-0.6B" in page
    assert "9,000" in page
    assert "gated" in page


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (RepositoryNotFoundError("the hub has no a/b"), "q"),
        (GatedError("access to a/b is restricted"), "q"),
        (TokenNeededError("the hub shows a/b to nobody"), "q"),
        (RevisionNotFoundError("the hub has the repository, but not a/b at x"), "revision"),
        (RateLimitedError("too many requests", retry_after=30), "__all__"),
        (UnauthorizedError("the hub does not accept the token"), "__all__"),
        (UnreachableError("https://hub.example can't be reached"), "__all__"),
    ],
    ids=lambda value: getattr(value, "code", value),
)
def test_each_refusal_has_its_own_words_and_next_step_at_its_field(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any], error: HubError, field: str
) -> None:
    answers["lookup"] = error
    query = {"source": source.pk, "q": "a/b", "revision": "x"}
    answer = signed_in(admin).get(reverse("model_add"), query)
    (message,) = answer.context["lookup"].errors[field]
    assert error.message[1:] in message
    assert message.startswith(("T", "A", "https://"))  # a sentence, but an address keeps its letters
    assert error.next_step in message
    assert 'value="a/b"' in answer.content.decode()


def test_a_gate_is_shown_with_the_facts_and_stops_the_download(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    values = {name: getattr(FACTS, name) for name in RepositoryFacts.__slots__}
    answers["lookup"] = RepositoryFacts(**{**values, "gated": True, "refusal": GatedError("access is restricted")})
    client = signed_in(admin)
    page = client.get(reverse("model_add"), {"source": source.pk, "q": "Qwen/Qwen3-0.6B"}).content.decode()
    assert "accept its terms" in page
    answer = client.post(reverse("model_add"), wish(source, fleet))
    assert "accept its terms" in answer.content.decode()
    assert not Job.objects.exists()


def test_a_download_pins_the_commit_and_keeps_the_sources_sums(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    answer = signed_in(admin).post(reverse("model_add"), wish(source, fleet, rate_limit_mib=20))
    job = Job.objects.get(kind="download")
    assert answer.headers["Location"] == reverse("job_detail", args=[job.pk])
    copy = Copy.objects.get(pk=job.about)
    assert copy.state == "downloading"
    assert copy.revision.commit == COMMIT
    assert copy.revision.ref == "main"
    assert copy.revision.model.origin == source
    download, verify = job.steps.all()
    assert (download.kind, verify.kind) == ("download", "verify")
    assert [file["path"] for file in download.payload["files"]] == ["config.json", "model.safetensors"]
    assert download.payload["files"][1]["sha256"] == "b" * 64
    assert download.payload["endpoint"] == "https://hub.example"
    assert download.payload["rate_limit"] == 20 << 20


def test_each_chosen_host_gets_a_job_and_a_second_click_none(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    other = Fleet.make()
    form = wish(source, fleet, hosts=[fleet.host.pk, other.host.pk])
    for _click in range(2):
        signed_in(admin).post(reverse("model_add"), form)
    assert {job.steps.first().host for job in Job.objects.filter(kind="download")} == {fleet.host, other.host}  # type: ignore[union-attr]
    assert Job.objects.count() == 2
    assert Model.objects.filter(repository=FACTS.repository).count() == 1


@pytest.mark.parametrize(("field", "value"), [("hosts", []), ("files", []), ("files", ["../secret"]), ("name", "")])
def test_a_wrong_choice_is_said_at_its_field_and_the_rest_kept(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any], field: str, value: Any
) -> None:
    answer = signed_in(admin).post(reverse("model_add"), wish(source, fleet, notes="for the chat", **{field: value}))
    assert answer.status_code == 400
    assert list(answer.context["form"].errors) == [field]
    assert "for the chat" in answer.content.decode()
    assert not Job.objects.exists()


def test_a_host_that_has_the_revision_is_refused_at_its_field(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    client = signed_in(admin)
    client.post(reverse("model_add"), wish(source, fleet))
    Copy.objects.filter(revision__commit=COMMIT).update(state="verified")
    answer = client.post(reverse("model_add"), wish(source, fleet, idempotency_key="key-2"))
    assert list(answer.context["form"].errors) == ["hosts"]


def test_hosts_that_have_the_revision_cant_be_chosen_again(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    client = signed_in(admin)
    client.post(reverse("model_add"), wish(source, fleet))
    answer = client.get(reverse("model_add"), {"source": source.pk, "q": "Qwen/Qwen3-0.6B"})
    (shown,) = [one for one in answer.context["shown_hosts"] if one.host == fleet.host]
    assert shown.copy == Copy.objects.get(revision__commit=COMMIT)
    assert reverse("copy_detail", args=[shown.copy.pk]) in answer.content.decode()


def test_a_wrong_revision_is_answered_with_those_that_exist(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    answers["lookup"] = RevisionNotFoundError("the hub has the repository, but not a/b at x")
    page = signed_in(admin).get(reverse("model_add"), {"source": source.pk, "q": "a/b", "revision": "x"})
    assert "revision=main" in page.content.decode()


def test_a_name_that_is_taken_is_refused_at_its_field(
    admin: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    answer = signed_in(admin).post(reverse("model_add"), wish(source, fleet, name=fleet.copy.revision.model.name))
    assert list(answer.context["form"].errors) == ["name"]


def test_a_source_of_another_team_is_no_choice(admin: User, fleet: Fleet, answers: dict[str, Any]) -> None:
    foreign = Source.objects.create(name="theirs", endpoint="https://x", team=Team.objects.create(name="others"))
    client = signed_in(admin)
    assert "theirs" not in client.get(reverse("model_add")).content.decode()
    client.post(reverse("model_add"), wish(foreign, fleet))
    assert not Job.objects.exists()
    assert answers["asked"] == []


def test_only_an_admin_adds_models(
    operator: User, viewer: User, fleet: Fleet, source: Source, answers: dict[str, Any]
) -> None:
    for user in (operator, viewer):
        assert signed_in(user).get(reverse("model_add")).status_code == 403
        assert signed_in(user).post(reverse("model_add"), wish(source, fleet)).status_code == 403


class TestSources:
    def test_only_an_admin_changes_them(self, operator: User, viewer: User, source: Source) -> None:
        for user in (operator, viewer):
            assert signed_in(user).get(reverse("source_list")).status_code == 200
            for name in ("source_edit", "source_token", "source_remove"):
                assert signed_in(user).post(reverse(name, args=[source.pk]), {"reason": "x"}).status_code == 403
            assert signed_in(user).post(reverse("source_test", args=[source.pk])).status_code == 403

    def test_a_token_is_stored_encrypted_tested_at_once_and_never_shown(
        self, admin: User, source: Source, answers: dict[str, Any]
    ) -> None:
        answers["whoami"] = Identity("ada-on-the-hub")
        client = signed_in(admin)
        client.post(reverse("source_token", args=[source.pk]), {"token": "hf_secret"})
        source.refresh_from_db()
        assert "hf_secret" not in source.token
        assert lookups.token_of(source) == "hf_secret"
        assert source.token_account == "ada-on-the-hub"
        pages = [client.get(reverse(name, args=[source.pk])) for name in ("source_token", "source_edit")]
        for answer in [*pages, client.get(reverse("source_list"))]:
            assert "hf_secret" not in answer.content.decode()
        assert "hf_secret" not in str(list(AuditEntry.objects.values()))

    def test_a_token_that_the_source_refuses_is_said_with_the_next_step(
        self, admin: User, source: Source, answers: dict[str, Any]
    ) -> None:
        answers["whoami"] = UnauthorizedError("the hub does not accept the token")
        Source.objects.filter(pk=source.pk).update(token=encrypt("hf_old"))
        page = signed_in(admin).post(reverse("source_test", args=[source.pk]), follow=True).content.decode()
        assert "Make a new access token" in page
        source.refresh_from_db()
        assert source.token_problem

    def test_another_address_drops_the_token(self, admin: User, source: Source) -> None:
        Source.objects.filter(pk=source.pk).update(token=encrypt("hf_old"))
        form = {"name": source.name, "kind": "mirror", "endpoint": "https://elsewhere.example"}
        signed_in(admin).post(reverse("source_edit", args=[source.pk]), form)
        source.refresh_from_db()
        assert source.endpoint == "https://elsewhere.example"
        assert source.token == ""

    @pytest.mark.parametrize("endpoint", ["ftp://x", "https://user:pw@x", "nonsense", ""])
    def test_a_bad_address_is_refused_at_its_field(self, admin: User, db: None, endpoint: str) -> None:
        form = {"name": "new", "kind": "mirror", "endpoint": endpoint}
        answer = signed_in(admin).post(reverse("source_add"), form)
        assert list(answer.context["form"].errors) == ["endpoint"]
        assert not Source.objects.filter(name="new").exists()

    def test_sources_of_another_team_are_invisible(self, admin: User, db: None) -> None:
        foreign = Source.objects.create(name="theirs", endpoint="https://x", team=Team.objects.create(name="others"))
        assert "theirs" not in signed_in(admin).get(reverse("source_list")).content.decode()
        assert signed_in(admin).get(reverse("source_edit", args=[foreign.pk])).status_code == 404

    def test_a_removed_source_leaves_its_models(self, admin: User, source: Source) -> None:
        model = Model.objects.create(name="kept", origin=source)
        signed_in(admin).post(reverse("source_remove", args=[source.pk]), {"reason": "moved"})
        model.refresh_from_db()
        assert model.origin is None
