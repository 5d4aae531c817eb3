"""People, accounts, the audit log and sign-in, as each role meets them."""

import csv
import io
import re

import pytest
from django.test import Client
from django.urls import reverse

from console.access import services
from console.access.models import AuditEntry, Role, Team, User

PASSWORD = "correct horse battery"
ADMIN_PAGES = ["people_list", "person_add"]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_whoever_is_not_signed_in_is_asked_to(db: None, client: Client) -> None:
    for name in ("overview", "people_list", "audit_list", "account_me", "host_list", "model_list", "search"):
        answer = client.get(reverse(name))
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith(reverse("account_login"))


def test_signing_in_with_the_right_password_leads_on(admin: User, client: Client) -> None:
    page = client.get(reverse("account_login"))
    assert "script-src &#x27;self&#x27;" not in page.content.decode()
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    wrong = client.post(reverse("account_login"), {"login": "ada", "password": "wrong"})
    assert wrong.status_code == 200
    assert "note-error" in wrong.content.decode()
    right = client.post(reverse("account_login"), {"login": "ada", "password": PASSWORD})
    assert right.headers["Location"] == reverse("overview")


def test_nobody_signs_up(db: None, client: Client) -> None:
    assert client.get(reverse("account_signup")).status_code == 404
    assert client.get("/account/password/reset/").status_code == 404
    assert client.get("/account/email/").status_code == 404


@pytest.mark.parametrize("name", ADMIN_PAGES)
def test_people_are_the_admins_matter(admin: User, operator: User, viewer: User, name: str) -> None:
    assert signed_in(admin).get(reverse(name)).status_code == 200
    assert signed_in(operator).get(reverse(name)).status_code == 403
    assert signed_in(viewer).get(reverse(name)).status_code == 403


@pytest.mark.parametrize("name", ["person_role", "person_active", "person_password"])
def test_only_an_admin_changes_people(admin: User, operator: User, viewer: User, name: str) -> None:
    page = reverse(name, args=[viewer.pk])
    assert signed_in(admin).get(page).status_code == 200
    for user in (operator, viewer):
        assert signed_in(user).get(page).status_code == 403
        assert signed_in(user).post(page, {"role": "admin"}).status_code == 403
    viewer.refresh_from_db()
    assert (viewer.role, viewer.is_active) == (Role.VIEWER, True)


def test_people_of_another_team_are_invisible(admin: User) -> None:
    stranger = User.objects.create_user("stranger", team=Team.objects.create(name="others"))
    for name in ("person_role", "person_active", "person_password"):
        assert signed_in(admin).get(reverse(name, args=[stranger.pk])).status_code == 404
    assert "stranger" not in signed_in(admin).get(reverse("people_list")).content.decode()


def test_an_admin_adds_a_person_and_sees_the_password_once(admin: User) -> None:
    answer = signed_in(admin).post(reverse("person_add"), {"username": "nora", "role": "operator"})
    assert answer.status_code == 200
    assert "no-store" in answer.headers["Cache-Control"]
    passwords = [text for text in re.findall(r"<code>([^<]+)</code>", answer.content.decode()) if text != "nora"]
    nora = User.objects.get(username="nora")
    assert nora.role == Role.OPERATOR
    assert len(passwords) == 1
    assert nora.check_password(passwords[0])
    assert passwords[0] not in signed_in(admin).get(reverse("people_list")).content.decode()


def test_a_taken_name_is_refused_at_its_field_and_kept(admin: User) -> None:
    answer = signed_in(admin).post(reverse("person_add"), {"username": "ADA", "role": "viewer"})
    assert answer.status_code == 400
    assert answer.context["form"].errors["username"] == ["There is a person with this name already."]
    assert 'value="ADA"' in answer.content.decode()


def test_a_first_password_must_be_changed_before_anything_else(admin: User) -> None:
    person, first = services.add_person(username="nora", role="operator", actor=admin)
    client = signed_in(person)
    assert client.get(reverse("overview")).headers["Location"] == reverse("account_me")
    assert client.get(reverse("search"), headers={"HX-Request": "true"}).headers["HX-Redirect"] == reverse("account_me")
    assert client.get(reverse("overview"), headers={"accept": "application/json"}).status_code == 403
    assert client.get(reverse("account_me")).status_code == 200
    answer = client.post(
        reverse("account_me"), {"current": first, "new": "my own long words", "again": "my own long words"}
    )
    assert answer.headers["Location"] == reverse("account_me")
    assert client.get(reverse("overview")).status_code == 200


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"current": "wrong", "new": "my own long words", "again": "my own long words"}, "current"),
        ({"current": PASSWORD, "new": "short", "again": "short"}, "new"),
        ({"current": PASSWORD, "new": "my own long words", "again": "my own other words"}, "again"),
    ],
)
def test_a_wrong_password_change_says_what_is_wrong(viewer: User, given: dict[str, str], field: str) -> None:
    answer = signed_in(viewer).post(reverse("account_me"), given)
    assert answer.status_code == 400
    assert list(answer.context["form"].errors) == [field]
    viewer.refresh_from_db()
    assert viewer.check_password(PASSWORD)


def test_the_last_admin_keeps_the_role_and_stays_enabled(admin: User) -> None:
    client = signed_in(admin)
    answer = client.post(reverse("person_role", args=[admin.pk]), {"role": "viewer"})
    assert answer.status_code == 400
    assert "last admin" in answer.content.decode()
    answer = client.post(reverse("person_active", args=[admin.pk]))
    assert answer.status_code == 400
    assert "last admin" in answer.content.decode()
    admin.refresh_from_db()
    assert (admin.role, admin.is_active) == (Role.ADMIN, True)


def test_a_disabled_person_is_out_at_the_next_request(admin: User, operator: User) -> None:
    client = signed_in(operator)
    assert client.get(reverse("overview")).status_code == 200
    signed_in(admin).post(reverse("person_active", args=[operator.pk]))
    assert client.get(reverse("overview")).status_code == 302
    signed_in(admin).post(reverse("person_active", args=[operator.pk]))
    operator.refresh_from_db()
    assert operator.is_active


def test_a_reset_password_ends_open_sessions(admin: User, operator: User) -> None:
    client = signed_in(operator)
    answer = signed_in(admin).post(reverse("person_password", args=[operator.pk]))
    assert answer.status_code == 200
    assert client.get(reverse("overview")).status_code == 302
    operator.refresh_from_db()
    assert operator.must_change_password


def test_a_question_comes_as_a_dialog_when_htmx_asks(admin: User, viewer: User) -> None:
    page = reverse("person_role", args=[viewer.pk])
    assert "<html" in signed_in(admin).get(page).content.decode()
    part = signed_in(admin).get(page, headers={"HX-Request": "true"}).content.decode()
    assert "<dialog" in part
    assert "<html" not in part


def test_the_audit_is_for_operators_and_admins(admin: User, operator: User, viewer: User) -> None:
    assert signed_in(admin).get(reverse("audit_list")).status_code == 200
    assert signed_in(operator).get(reverse("audit_list")).status_code == 200
    assert signed_in(viewer).get(reverse("audit_list")).status_code == 403
    assert signed_in(viewer).get(reverse("audit_list"), {"format": "csv"}).status_code == 403


def test_the_audit_filters_by_person_area_day_and_text(admin: User, operator: User) -> None:
    services.record(actor=operator, action="instance.restart", target="chat #1", reason="stuck after a driver error")
    services.record(actor=admin, action="host.add", target="gpu-01")
    client = signed_in(admin)

    def found(**query: object) -> list[str]:
        return [entry.action for entry in client.get(reverse("audit_list"), query).context["page"]]

    assert found() == ["host.add", "instance.restart"]
    assert found(person=operator.pk) == ["instance.restart"]
    assert found(area="host") == ["host.add"]
    assert found(q="driver") == ["instance.restart"]
    assert found(until="2001-01-01") == []
    assert found(since="2001-01-01", q="gpu") == ["host.add"]


def test_the_audit_page_costs_the_same_with_many_entries(admin: User, django_assert_max_num_queries: object) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(actor=admin, actor_name="ada", action="host.add", target=f"gpu-{number}") for number in range(120)
    )
    client = signed_in(admin)
    with django_assert_max_num_queries(7):  # type: ignore[operator]
        answer = client.get(reverse("audit_list"), {"page": 2})
    assert "Page 2 of 3" in answer.content.decode()


def test_the_audit_as_csv_has_every_entry_and_no_formula(operator: User) -> None:
    services.record(actor=operator, action="instance.restart", target="chat #1", reason="=HYPERLINK(1)")
    answer = signed_in(operator).get(reverse("audit_list"), {"format": "csv"})
    assert "attachment" in answer.headers["Content-Disposition"]
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    heads, row = list(csv.reader(io.StringIO(text)))
    assert dict(zip(heads, row, strict=True))["reason"] == "'=HYPERLINK(1)"
    assert row[1:4] == ["otto", "instance.restart", "chat #1"]


def test_an_audit_entry_knows_the_address(admin: User, viewer: User) -> None:
    signed_in(admin).post(reverse("person_role", args=[viewer.pk]), {"role": "operator"}, REMOTE_ADDR="10.1.2.3")
    assert AuditEntry.objects.get(action="person.change_role").address == "10.1.2.3"


def test_every_role_sees_only_its_own_navigation(admin: User, operator: User, viewer: User) -> None:
    def links(user: User) -> set[str]:
        page = signed_in(user).get(reverse("account_me")).content.decode()
        navigation = page[page.index("nav-main") : page.index("</nav>", page.index("nav-main"))]
        return set(re.findall(r'href="([^"]+)"', navigation))

    governed = {reverse("people_list"), reverse("audit_list")}
    assert links(admin) >= governed
    assert links(operator) & governed == {reverse("audit_list")}
    assert not links(viewer) & (governed | {reverse("playground")})


def test_theme_and_language_are_remembered(viewer: User) -> None:
    client = signed_in(viewer)
    client.post(reverse("set_theme"), {"theme": "dark"})
    assert 'data-bs-theme="dark"' in client.get(reverse("account_me")).content.decode()
    client.post(reverse("set_theme"), {"theme": "neon"})
    assert client.cookies["theme"].value == "dark"
    client.post(reverse("set_language"), {"language": "zh-hans"})
    assert '<html lang="zh-hans"' in client.get(reverse("account_me")).content.decode()
    client.post(reverse("set_language"), {"language": "xx"})
    assert client.cookies["django_language"].value == "zh-hans"


def test_going_back_never_leaves_this_console(viewer: User) -> None:
    answer = signed_in(viewer).post(
        reverse("set_theme"), {"theme": "dark"}, headers={"referer": "https://evil.example/x"}
    )
    assert answer.headers["Location"] == reverse("overview")


def test_errors_speak_plainly_and_show_a_way_back(viewer: User) -> None:
    client = signed_in(viewer)
    missing = client.get("/no/such/page/")
    assert missing.status_code == 404
    assert "There is nothing here" in missing.content.decode()
    forbidden = client.get(reverse("people_list")).content.decode()
    assert "Your role is viewer" in forbidden
    strict = Client(enforce_csrf_checks=True)
    refused = strict.post(reverse("account_login"), {"login": "vera", "password": PASSWORD})
    assert refused.status_code == 403
    assert "no longer valid" in refused.content.decode()


@pytest.mark.parametrize("page", ["mfa_index", "account_logout"])
def test_allauths_pages_wear_our_frame(viewer: User, page: str) -> None:
    answer = signed_in(viewer).get(reverse(page), follow=True)
    assert answer.status_code == 200
    assert "css/slipway.css" in answer.content.decode()
