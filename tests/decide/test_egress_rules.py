"""What may go out through a gateway, as a table: heads of requests, addresses, hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.decide.egress import Outgoing, address_refused, admit, host_listed, may_use, passed_back
from broker.decide.gateway import FIRST_PORT, Gateway, Secret, added_to, environment_for, port_of, ports_for
from broker.decide.model_name import Unclear
from broker.decide.verdict import Deny

KEY = Secret(kind="env", source=("KEY",))
MESSAGES = Gateway(
    name="model", scheme="https", host="api.example.com", port=443, prefix="/base", methods=("POST",),
    paths=("/v1/messages", "/v1beta/models/*"), headers=(("x-api-key", KEY),), models=("small-1",),
)  # fmt: skip
OPEN = Gateway(name="open", scheme="https", host="api.example.com", port=443)


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (b"/v1/messages", ""),
        (b"/v1/messages?beta=true", ""),
        (b"/v1/messages/count_tokens", ""),
        (b"/v1beta/models/small-1:generateContent?alt=sse", ""),
        (b"/v1beta/models/large-1:generateContent?alt=sse", "gateway.model"),
        (b"/v1/messages2", "gateway.path"),
        (b"/v1/files", "gateway.path"),
        (b"/", "gateway.path"),
        (b"/v1/messages/../files", "gateway.target"),
        (b"/v1/messages/%2e%2e/files", "gateway.target"),
        (b"/v1/messages/%2E%2E%2Ffiles", "gateway.target"),
        (b"/v1/messages/%252e%252e/files", "gateway.target"),
        (b"/v1/messages//x", "gateway.target"),
        (b"/v1/messages%00", "gateway.target"),
        (b"/v1/messages\\x", "gateway.target"),
        (b"/v1/messages/\xc3\xa9", "gateway.target"),
        (b"http://elsewhere.example/v1/messages", "gateway.target"),
        (b"elsewhere.example:443", "gateway.target"),
        (b"*", "gateway.target"),
        (b"", "gateway.target"),
        (b"/v1/messages/..;/files", "gateway.target"),
        (b"/v1/messages/%25252e", "gateway.target"),
        (b"/v1/messages?a b", "gateway.target"),
        (b"/v1/messages/%c0%ae%c0%ae/files", "gateway.target"),  # overlong: dots to whoever decodes by hand
        (b"/v1/messages/..%c0%affiles", "gateway.target"),
        (b"/v1/messages/%e2%80%a4%e2%80%a4/files", "gateway.target"),  # one dot leaders, for who folds compatible characters
        (b"/v1/messages/%ef%bc%85%ef%bc%85", "gateway.target"),
        (b"/v1/messages%ef%bc%8ffiles", "gateway.target"),
        (b"/v1/messages/..%20/files", "gateway.target"),
        (b"/v1/messages/.%09./files", "gateway.target"),
        (b"/v1/messages%0d%0ahost:%20x", "gateway.target"),
        (b"/v1/messages/%u002e%u002e/files", "gateway.target"),
        (b"/v1/messages/gr%C3%BC%C3%9Fe", ""),
        (b"/v1/messages/a%20b", ""),
        (b"/v1/messages?a\r\nHost: b", "gateway.target"),
    ],
)
def test_only_listed_paths_go_out_whatever_they_are_spelled_like(target: bytes, rule: str) -> None:
    found = admit(MESSAGES, b"POST", target, [])
    if rule:
        assert isinstance(found, Deny)
        assert found.rule == rule
    else:
        assert isinstance(found, Outgoing)
        assert found.target == b"/base" + target


def test_a_method_that_is_not_listed_is_refused() -> None:
    for method in (b"GET", b"DELETE", b"post", b"CONNECT", b"\xff"):
        found = admit(MESSAGES, method, b"/v1/messages", [])
        assert isinstance(found, Deny)
        assert found.rule == "gateway.method"


def test_the_task_sends_no_credential_no_host_and_nothing_of_the_connection() -> None:
    sent = [
        (b"host", b"evil.example"), (b"x-api-key", b"mine"), (b"authorization", b"Bearer mine"), (b"cookie", b"a=b"),
        (b"connection", b"close, x-secret-hop"), (b"x-secret-hop", b"1"), (b"transfer-encoding", b"chunked"),
        (b"proxy-authorization", b"x"), (b"x-forwarded-for", b"1.2.3.4"), (b"content-type", b"application/json"),
        (b"accept", b"text/event-stream"),
    ]  # fmt: skip
    found = admit(MESSAGES, b"POST", b"/v1/messages", sent)
    assert isinstance(found, Outgoing)
    assert found.headers == ((b"content-type", b"application/json"), (b"accept", b"text/event-stream"))


@pytest.mark.parametrize("name", [
    "x-http-method-override", "X-HTTP-Method", "x-method-override", "x-original-url", "X_Original_URL", "x-rewrite-url", "x-forwarded-prefix",
    "x-forwarded-uri", "forwarded", "x-original-method", "x_forwarded_for", "x-host", "x-real-ip", "transfer_encoding", "content_length",
])  # fmt: skip
def test_what_a_server_could_take_for_another_path_method_or_host_is_not_sent(name: str) -> None:
    found = admit(OPEN, b"POST", b"/", [(name.lower().encode(), b"/admin"), (b"session_id", b"1")])
    assert isinstance(found, Outgoing)
    assert found.headers == ((b"session_id", b"1"),)


@pytest.mark.parametrize("name", ["x_api_key", "authorization", "x-auth-token", "private-token", "api_key", "x-amz-security-token", "cookie"])
def test_no_account_but_the_operators_is_used_under_any_spelling(name: str) -> None:
    found = admit(MESSAGES, b"POST", b"/v1/messages", [(name.encode(), b"mine")])
    assert isinstance(found, Outgoing)
    assert found.headers == ()
    other = Gateway(name="other", scheme="https", host="a.example", port=443, headers=(("x-own-credential", KEY),))
    found = admit(other, b"POST", b"/v1/messages", [(name.encode(), b"mine"), (b"x_own_credential", b"mine")])
    assert isinstance(found, Outgoing)
    assert found.headers == ()


def test_a_credential_in_a_query_stays_inside_when_the_gateway_adds_its_own() -> None:
    target = b"/v1/messages?a=1&key=mine&%6bey=mine&$key=mine&access_token=mine&API_KEY=mine&keys=2"
    found = admit(MESSAGES, b"POST", target, [])
    assert isinstance(found, Outgoing)
    assert found.target == b"/base/v1/messages?a=1&keys=2"
    assert admit(OPEN, b"POST", b"/?key=mine", []) == Outgoing(method="POST", target=b"/?key=mine", headers=())


def test_a_credential_among_the_protocols_of_a_websocket_stays_inside() -> None:
    gateway = Gateway(name="up", scheme="https", host="a.example", port=443, headers=(("authorization", KEY),))
    headers = [(b"upgrade", b"websocket"), (b"sec-websocket-protocol", b"realtime, openai-insecure-api-key.mine,openai-beta.realtime-v1")]
    found = admit(gateway, b"GET", b"/v1/realtime", headers)
    assert isinstance(found, Outgoing)
    assert found.headers == ((b"sec-websocket-protocol", b"realtime, openai-beta.realtime-v1"),)


@pytest.mark.parametrize(("target", "may"), [
    (b"/v1/messages?model=small-1", True), (b"/v1/messages?model=large-1", False), (b"/v1beta/models/small-1:generate", True),
    (b"/v1beta/models/large-1:generate", False), (b"/v1beta/models/large%2d1:generate", False),
])  # fmt: skip
def test_a_model_in_the_path_or_query_must_be_listed_too(target: bytes, *, may: bool) -> None:
    found = admit(MESSAGES, b"POST", target, [(b"content-length", b"3")])
    assert isinstance(found, Outgoing) if may else isinstance(found, Deny) and found.rule == "gateway.model"


def test_a_model_may_be_looked_up_that_may_not_be_used() -> None:
    listing = Gateway(name="up", scheme="https", host="a.example", port=443, models=("small-1",))
    assert isinstance(admit(listing, b"GET", b"/v1/models/large-1", []), Outgoing)
    assert isinstance(admit(listing, b"GET", b"/v1/models/large-1", [(b"content-length", b"3")]), Deny)
    assert isinstance(admit(listing, b"GET", b"/say?model=large-1", []), Deny)


def test_a_request_says_in_one_way_only_where_its_body_ends() -> None:
    assert admit(OPEN, b"POST", b"/", [(b"content-length", b"3")]) == Outgoing(method="POST", target=b"/", headers=(), length=3)
    assert admit(OPEN, b"POST", b"/", [(b"transfer-encoding", b"chunked")]) == Outgoing(method="POST", target=b"/", headers=(), length=None)
    for headers in (
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"3"), (b"content-length", b"4")],
        [(b"upgrade", b"websocket"), (b"content-length", b"3")],
        [(b"upgrade", b"websocket"), (b"transfer-encoding", b"chunked")],
    ):
        found = admit(OPEN, b"GET" if headers[0][0] == b"upgrade" else b"POST", b"/", headers)
        assert isinstance(found, Deny)
        assert found.rule == "gateway.framing"
    assert admit(OPEN, b"POST", b"/", [(b"upgrade", b"websocket")]) == Outgoing(method="POST", target=b"/", headers=())


def test_what_an_upstream_says_about_its_connection_and_its_sessions_stays_outside() -> None:
    said = [
        (b"connection", b"close, x-hop"), (b"x-hop", b"1"), (b"keep-alive", b"5"), (b"alt-svc", b"h3"), (b"set-cookie", b"session=1"),
        (b"content-type", b"a/b"), (b"location", b"https://elsewhere.example/"), (b"content-length", b"3"),
    ]  # fmt: skip
    passed = ((b"content-type", b"a/b"), (b"location", b"https://elsewhere.example/"))
    assert passed_back(MESSAGES, said) == passed
    assert passed_back(OPEN, said) == ((b"set-cookie", b"session=1"), *passed)
    assert passed_back(OPEN, [*said, (b"transfer-encoding", b"chunked")]) is None


def test_a_gateway_that_lets_every_path_through_takes_unusual_ones() -> None:
    for target in (b"/a//b", b"/a%2Fb", b"/a/../b", b"/?url=http://x/../y"):
        found = admit(OPEN, b"GET", target, [])
        assert isinstance(found, Outgoing)
        assert found.target == target


def test_without_a_header_of_the_gateways_own_the_task_may_bring_its_credential() -> None:
    found = admit(OPEN, b"POST", b"/v1", [(b"authorization", b"Bearer mine")])
    assert isinstance(found, Outgoing)
    assert found.headers == ((b"authorization", b"Bearer mine"),)


def test_only_listed_models_are_used() -> None:
    assert may_use(MESSAGES, "small-1") is None
    assert may_use(OPEN, "anything") is None
    for model in ("large-1", "small-1 ", "", Unclear("the body names no model"), "\x1b[2J"):
        denial = may_use(MESSAGES, model)
        assert denial is not None
        assert denial.rule == "gateway.model"
        assert denial.what.isprintable()


@pytest.mark.parametrize(
    ("address", "allowed", "may"),
    [
        ("93.184.216.34", (), True),
        ("2606:2800:220:1:248:1893:25c8:1946", (), True),
        ("127.0.0.1", (), False),
        ("127.0.0.1", ("127.0.0.0/8",), True),
        ("10.1.2.3", (), False),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("192.168.0.0/16", "fd00::/8"), False),
        ("169.254.169.254", (), False),
        ("::1", (), False),
        ("::", (), False),
        ("fe80::1%eth0", (), False),
        ("fd00:ec2::254", (), False),
        ("::ffff:10.0.0.1", (), False),
        ("::ffff:10.0.0.1", ("10.0.0.0/8",), True),
        ("::ffff:169.254.169.254", (), False),
        ("::169.254.169.254", (), False),
        ("64:ff9b::a9fe:a9fe", (), False),
        ("64:ff9b::5db8:d822", (), True),
        ("2002:a9fe:a9fe::1", (), False),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", (), False),
        ("100.64.0.1", (), False),
        ("224.0.0.1", (), False),
        ("ff02::1", (), False),
        ("0.0.0.0", (), False),
        ("255.255.255.255", (), False),
        ("168.63.129.16", (), False),  # Azure's own services, at an address that looks public
        ("168.63.129.16", ("168.63.129.16/32",), True),
        ("192.88.99.1", (), False),
        ("192.0.0.9", (), False),
        ("64:ff9b:1::a9fe:a9fe", (), False),
        ("64:ff9b:1::a9fe:a9fe", ("64:ff9b:1::/48",), True),
        ("fec0::1", (), False),
        ("::ffff:0:10.0.0.1", (), False),
        ("5f00::1", (), False),
        ("3fff::1", (), False),
        ("4000::1", (), False),
        ("2a00:1450::5efe:10.0.0.1", (), False),
        ("2a00:1450::200:5efe:93.184.216.34", (), True),
    ],
)
def test_only_public_addresses_and_listed_networks_are_reached(address: str, allowed: tuple[str, ...], *, may: bool) -> None:
    assert (address_refused(address, allowed) == "") is may


@pytest.mark.parametrize(
    ("host", "port", "may"),
    [
        ("pypi.org", 443, True), ("PyPI.org.", 443, True), ("pypi.org", 80, False), ("xpypi.org", 443, False),
        ("pypi.org.evil.example", 443, False), ("files.pythonhosted.org", 443, True), ("pythonhosted.org", 443, False),
        ("a.b.pythonhosted.org", 443, True), ("", 443, False), ("pypi.org\0.evil", 443, False), ("151.101.0.223", 443, False),
        ("pypi.org@evil", 443, False), ("[::1]", 443, False),
    ],
)  # fmt: skip
def test_a_host_is_reached_only_if_it_is_listed(host: str, port: int, *, may: bool) -> None:
    assert host_listed(host, port, ("pypi.org:443", "*.pythonhosted.org:443")) is may


@given(st.binary(max_size=60))
def test_whatever_is_asked_for_an_answer_comes_and_what_goes_out_is_below_a_listed_path(target: bytes) -> None:
    found = admit(MESSAGES, b"POST", b"/v1/messages" + target, [])
    if isinstance(found, Outgoing):
        path = found.target.partition(b"?")[0]
        assert path == b"/base/v1/messages" or path.startswith((b"/base/v1/messages/", b"/base/v1beta/models/"))
        assert b".." not in path.split(b"/")
    else:
        assert found.what.isprintable()


def test_each_gateway_has_a_port_and_its_variables_and_so_has_the_proxy() -> None:
    one = Gateway(name="a", scheme="https", host="a", port=443, env=(("A_URL", "{url}/v1"),))
    two = Gateway(name="b", scheme="https", host="b", port=443, env=(("B_URL", "{url}"),), inside=FIRST_PORT + 1)
    values = dict(environment_for((one, two), ("pypi.org:443",)))
    first, second, proxy = ports_for((one, two), ("pypi.org:443",))
    assert (values["A_URL"], values["B_URL"]) == (f"http://127.0.0.1:{first}/v1", f"http://127.0.0.1:{second}")
    assert values["HTTPS_PROXY"] == f"http://127.0.0.1:{proxy}"
    assert values["NO_PROXY"] == "127.0.0.1,localhost,::1"
    assert environment_for((), ()) == ()
    assert [(gateway.name, gateway.inside) for gateway in added_to(added_to((), one), two)] == [("a", FIRST_PORT), ("b", FIRST_PORT + 1)]
    assert port_of(added_to((one,), two), "b") == FIRST_PORT + 1
