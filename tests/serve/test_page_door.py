"""Who comes in to the page: nobody without the link's secrets, no other site's requests, and nobody who sends too much or too slowly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from page_visitor import Served, read, served

from broker.errors import UsageError
from broker.serve.page import http
from broker.serve.page.door import Door
from broker.serve.page.server import ADDRESSES, listener

SECRET = ("stream", "denial?x")  # what says anything of a run
STATIC = ("", "page.js", "page.css", "icon.svg")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No runs but those of this module, which are none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROKER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="module")
def page(base: None) -> Iterator[Served]:
    """One server for all of them: nothing that a visitor does may be felt by the next."""
    with served() as made:
        yield made


# --- the secrets


def test_the_token_of_the_link_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_has(page: Served) -> None:
    token, before = page.door.url.partition("#")[2], page.entered
    reply = page.ask("POST", "session", {"token": token}, **page.own)

    assert (reply.status, reply.body, page.entered) == (204, b"", before + 1)
    name, *rest = reply.headers["set-cookie"].split("; ")
    assert name == f"broker-page={page.door.cookie}"
    assert set(rest) == {f"Path={page.door.path}", "HttpOnly", "SameSite=Strict"}
    assert token not in reply.headers["set-cookie"]


def test_secrets_are_long_and_each_servers_own() -> None:
    doors = [Door(hosts=("127.0.0.1:1",)) for _ in range(50)]
    for each in ("token", "cookie", "path"):
        assert len({getattr(door, each) for door in doors}) == 50
    assert all(len(door.token) == 32 and len(door.cookie) == 32 for door in doors)  # 192 bits in base64
    assert "token" not in repr(doors[0])


@pytest.mark.parametrize("wrong", [None, "", "x", "é", "\ud800", 7, ["a"]])
def test_another_token_opens_nothing(page: Served, wrong: object) -> None:
    before = page.entered
    reply = page.ask("POST", "session", {"token": wrong}, **page.own)
    assert reply.status in (400, 403)
    assert "set-cookie" not in reply.headers
    assert page.entered == before


@pytest.mark.parametrize("name", SECRET)
@pytest.mark.parametrize("cookie", ["", "broker-page=", "broker-page=x", "other={right}", "broker-page={right}x", "Broker-Page={right}"])
def test_without_the_cookie_nothing_of_a_run_is_said(page: Served, name: str, cookie: str) -> None:
    assert page.ask("GET", name, Cookie=cookie.format(right=page.door.cookie)).status == 401
    assert page.ask("GET", name).status == 401


def test_without_the_cookie_nothing_is_answered(page: Served) -> None:
    said = {"id": "r.1", "digest": "x", "how": "once", "why": "", "word": ""}
    assert page.ask("POST", "answer", said, **page.own).status == 401
    assert page.post("answer", said).status == 200


def test_the_cookie_is_found_among_those_of_other_servers_on_this_host(page: Served) -> None:
    assert page.ask("GET", "denial?x", Cookie=f"a=b; broker-page=old; broker-page={page.door.cookie}; c").status == 404


@pytest.mark.parametrize("target", ["/", "/page.js", "/stream", "//stream", "/{half}/stream", "/x{path}stream", "*", "http://{host}{path}page.js"])
def test_whoever_does_not_know_the_path_finds_nothing(page: Served, target: str) -> None:
    path = page.door.path
    asked = target.format(half=path[1:8], path=path, host=page.host)
    assert page.ask("GET", asked, whole_path=True, **page.cookie).status == 404


# --- other sites


@pytest.mark.parametrize("name", [*STATIC, *SECRET])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "0.0.0.0:{port}", ""])
def test_a_name_that_was_made_to_mean_this_host_is_turned_away(page: Served, name: str, host: str) -> None:
    assert page.get(name, Host=host.format(port=page.port)).status == 421


def test_localhost_is_the_same_server(page: Served) -> None:
    assert page.get("", Host=f"localhost:{page.port}").status == 200
    assert page.post("answer", {}, Host=f"localhost:{page.port}", Origin=f"http://localhost:{page.port}").status == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "https://{host}", "http://localhost:{port}", ""])
@pytest.mark.parametrize("name", ["answer", "session"])
def test_another_sites_post_is_turned_away(page: Served, origin: str, name: str) -> None:
    given = origin.format(host=page.host, port=page.port)
    said, before = {"token": page.door.token}, page.entered
    assert page.ask("POST", name, said, **{**page.cookie, "Origin": given}).status == 403
    assert page.ask("GET", "denial?x", **{**page.cookie, "Origin": given}).status == 403
    assert page.entered == before


def test_a_post_that_names_no_origin_is_turned_away(page: Served) -> None:
    assert page.ask("POST", "session", {"token": page.door.token}, Sec_Fetch_Site="same-origin").status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "strange"])
def test_a_browser_that_says_that_another_site_asks_is_turned_away(page: Served, site: str) -> None:
    for name in (*STATIC[1:], *SECRET):
        assert page.get(name, Sec_Fetch_Site=site).status == 403
    assert page.post("answer", {}, Sec_Fetch_Site=site).status == 403


def test_a_link_to_the_page_can_be_followed_and_the_page_cannot_be_put_into_another(page: Served) -> None:
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert page.ask("GET", "", **followed).status == 200
    assert page.ask("GET", "", Sec_Fetch_Site="none").status == 200
    for changed in ({"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Mode": "no-cors"}, {"Sec_Fetch_Dest": "script"}):
        assert page.ask("GET", "", **{**followed, **changed}).status == 403


@pytest.mark.parametrize("name", [*STATIC, "denial?x", "nothing"])
def test_every_answer_forbids_frames_foreign_content_and_keeping_it(page: Served, name: str) -> None:
    headers = page.get(name).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self'",
        "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'", "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }  # fmt: skip
    wanted = {"x-frame-options": "DENY", "x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}
    assert {name: headers[name] for name in wanted} == wanted
    assert not [name for name in headers if name.startswith("access-control-")]


# --- methods, sizes, patience


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "POST", "get"])
def test_only_what_a_page_is_fetched_with_is_a_method(page: Served, method: str) -> None:
    assert page.ask(method, "", **{**page.own, **page.cookie}).status == 405


def test_what_changes_something_is_never_a_get(page: Served) -> None:
    for name in ("answer", "session"):
        assert page.get(name).status == 405


@pytest.mark.parametrize("name", ["../page.js", "..%2fpage.js", "%2e%2e/door.py", "door.py", "page.js/", "page.js%00", "./page.js", "static/../page.js", "/etc/passwd"])
def test_there_are_four_files_and_no_way_to_another(page: Served, name: str) -> None:
    assert page.get(name).status == 404


def test_a_body_has_a_size(page: Served) -> None:
    assert page.post("answer", b" " * (http.MOST_BODY + 1)).status == 413
    assert page.post("answer", b" " * http.MOST_BODY).status == 400


def test_a_body_of_unknown_length_has_the_same_size(page: Served) -> None:
    head = f"POST {page.door.path}answer HTTP/1.1\r\nHost: {page.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert page.raw(head.encode() + b"1000\r\n" + b" " * 4096 + b"\r\n" + b"1001\r\n" + b" " * 4097 + b"\r\n").status == 413


def test_a_head_has_a_size(page: Served) -> None:
    assert page.get("", X=f"{'y' * 2 * http.MOST_HEAD}").status == 431


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 4000, b'{"id": 1}', b"\xff", b'{"id":"r.1","digest":"x","how":"always","why":"","word":""}',
                                  b'{"id":"r.1","digest":"x","how":"once","why":"","word":"","more":1}'])  # fmt: skip
def test_what_is_no_answer_is_none(page: Served, body: bytes) -> None:
    assert page.post("answer", body).status == 400


def test_a_form_of_another_site_is_no_answer_whatever_it_holds(page: Served) -> None:
    said = {"id": "r.1", "digest": "x", "how": "once", "why": "", "word": ""}
    assert page.post("answer", said, Content_Type="text/plain").status == 400


@pytest.mark.parametrize("data", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                                  b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"])  # fmt: skip
def test_what_is_no_request_is_refused_and_the_server_goes_on(page: Served, data: bytes) -> None:
    with page.connect() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert read(connection).status in (0, 400)
    assert page.get("").status == 200


def test_whoever_trickles_a_request_is_sent_away(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.3)
    with page.connect() as connection:
        over = threading.Event()

        def trickle() -> None:
            try:
                for letter in f"GET {page.door.path} HTTP/1.1\r\nHost: {page.host}\r\nX: {'y' * 10_000}":
                    if over.wait(0.05):
                        return
                    connection.sendall(letter.encode())
            except OSError:
                pass

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            reply = read(connection)
        finally:
            over.set()
            thread.join()
    assert reply.status == 408


def test_whoever_reads_nothing_is_left(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_SECONDS", 0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", page.port))
        asked = f"GET {page.door.path}page.js HTTP/1.1\r\nHost: {page.host}\r\n\r\n".encode()
        monkeypatch.setattr(http, "HEADERS", (*http.HEADERS, ("X-Long", "y" * (16 << 20))))
        connection.sendall(asked)
        until_reset(connection)


def until_reset(connection: socket.socket) -> None:
    """Wait, reading nothing, until the other side has gone: the kernel says so."""
    import select

    poller = select.poll()
    poller.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    assert poller.poll(20_000)


def test_only_so_many_are_connected_at_once_and_room_is_made_again(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 4)
    held = [page.connect() for _ in range(4)]
    for one in held:
        one.sendall(b"GET ")
    assert page.get("").status == 0
    for one in held:
        one.close()
    for _ in range(1000):
        if (status := page.get("").status) == 200:
            break
    assert status == 200


# --- where it listens


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "localhost", "127.0.0.2", "", "::ffff:127.0.0.1"])
def test_it_listens_on_loopback_and_nowhere_else(address: str) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 or ::1 only.*ssh -L"):
        listener(address, 0)


def test_the_other_loopback_will_do_where_there_is_one(base: None) -> None:
    try:
        socket.create_server(("::1", 0), family=ADDRESSES["::1"]).close()
    except OSError as error:
        pytest.skip(f"this host has no ::1: {error}")
    with served("::1") as page:
        assert page.door.url.startswith(f"http://[::1]:{page.port}/")
        with socket.create_connection(("::1", page.port), 20) as connection:
            connection.sendall(f"GET {page.door.path} HTTP/1.1\r\nHost: [::1]:{page.port}\r\n\r\n".encode())
            assert read(connection).status == 200


def test_a_port_that_is_taken_is_said(page: Served) -> None:
    with pytest.raises(UsageError, match=f"port {page.port} of 127.0.0.1 cannot be used.*Leave --port out"):
        listener("127.0.0.1", page.port)
