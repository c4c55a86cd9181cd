"""The second reader of the network, beside the first, on what the kernel really answers."""

from __future__ import annotations

import os
from dataclasses import replace

from enforce.test_network import lied_to, route_socket

from broker.enforce.examine import _cross_check
from broker.enforce.network import inspect_network
from broker.enforce.network_cross_check import differences, read_with_pyroute2


def test_both_readers_find_the_same_links_and_routes_one_after_the_other_on_one_socket() -> None:
    with route_socket() as asked:
        ours = inspect_network(os.getpid(), asked)
        theirs = read_with_pyroute2(os.getpid(), asked)
        again = inspect_network(os.getpid(), asked)

    assert "lo" in theirs.links
    assert ours == theirs == again
    assert differences(ours, theirs) == ""


def test_a_link_or_a_route_that_only_one_reader_sees_is_named_with_the_reader() -> None:
    with route_socket() as asked:
        facts = inspect_network(os.getpid(), asked)
        missed = replace(facts, links=("lo",), routes=())
        more = replace(facts, links=(*facts.links, "leak0"), routes=(*facts.routes, "203.0.113.0 table 7"))
        finding = _cross_check(more, os.getpid(), asked)

    assert differences(missed, more) == (
        f"broker reads the links ['lo'], pyroute2 {list(more.links)}; broker reads the routes [], pyroute2 {list(more.routes)}"
    )
    assert not finding.effective
    assert finding.evidence == differences(more, facts)
    assert "report this" in finding.remedy


def test_an_answer_that_is_not_the_kernels_is_no_agreement() -> None:
    with route_socket() as real:
        facts = inspect_network(os.getpid(), real)
    with lied_to() as asked:
        finding = _cross_check(facts, os.getpid(), asked)

    assert not finding.effective
    assert "pyroute2 got no answer: somebody else than the kernel answered" in finding.evidence
