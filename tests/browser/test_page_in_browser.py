"""The page in a real browser, over real runs: a key lets a held program go, and nothing that a task wrote is more than text."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from shown_page import Page

from conformance.driver import until

pytestmark = [pytest.mark.needs_chromium, pytest.mark.needs_bubblewrap, pytest.mark.xdist_group("browser")]

HOSTILE = (
    "<img src=x onerror=\"document.title='taken'\">", "<script>document.title='taken'</script>", "\"'><svg onload=document.title='taken'>",
    "</code></style></title><b>", "\u202egnp.exe", "\x1b]0;taken\x07", "&lt;b&gt;", "javascript:document.title='taken'", "{{7*7}}", " \t ", "",
)  # fmt: skip


def held(page: Page, script: str, *options: str) -> Any:
    return page.broker.started("bash", "-c", script, options=["--ask", *options], profile="held")


# --- answers


def test_a_key_lets_the_held_program_go(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl -s http://a.invalid")
        for said in ("network_egress", "root wants to start a program", "program.curl", "/usr/bin/curl", "sha256", str(page.broker.workspace), "left"):
            assert said in page.tab.text("#question"), said
        assert page.tab.text(".argv").split() == ["0", "curl", "1", "-s", "2", "http://a.invalid"]
        assert "Question: network_egress. root wants to start a program: curl -s http://a.invalid" in page.tab.run("document.getElementById('polite').textContent")
        page.tab.press("o")
        page.nothing_waits()
        done = running.finish()
    assert done.out == b"6\n"  # curl has started, and found no network all the same
    assert page.answers() == [("page", "once")]


def test_what_is_denied_with_a_reason_is_read_by_who_asked(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl")
        page.tab.press("w")
        page.tab.until("document.activeElement.id === 'reason'")
        page.tab.type("use the do o cache 😀")  # d and o are letters here, and no answers
        page.tab.press("Enter")
        page.nothing_waits()
        done = running.finish()
    assert done.out == b"126\n"
    assert "said no: use the do o cache 😀" in done.err.decode()
    assert page.answers() == [("page", "deny")]


def test_a_mouse_answers_as_well_and_for_the_session(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?; curl -s http://a.invalid; echo $?; curl -s http://b.invalid; echo $?") as running:
        page.question("a.invalid")
        page.tab.click("#session")
        page.question("b.invalid")
        page.tab.click("#deny")
        done = running.finish()
    assert done.out == b"6\n6\n126\n"
    assert page.answers() == [("page", "session"), ("session", "session"), ("page", "deny")]


def test_a_fourth_approval_takes_the_word_and_what_is_typed_ahead_is_lost(page: Page) -> None:
    with held(page, "for n in 1 2 3 4; do curl -s http://a.invalid/$n; echo $n; done") as running:
        for number in range(1, 4):
            page.question(f"a.invalid/{number}")
            page.tab.press("o")
        page.question("a.invalid/4")
        # Keys that come in the very moment in which the field is there: none of them can be after the pause.
        page.tab.run("""(() => {
            const form = document.getElementById('word-form'), field = document.getElementById('word');
            new MutationObserver((_, seen) => {
                if (form.hidden) return;
                seen.disconnect();
                window.early = document.execCommand('insertText', false, 'approve') || field.value;
                form.requestSubmit();
            }).observe(form, { attributes: true });
        })()""")
        page.tab.press("o")
        page.tab.until("document.activeElement.id === 'word' && !document.getElementById('word').readOnly")
        assert page.tab.run("window.early") in (False, "")
        assert page.tab.run("document.getElementById('word').value") == ""
        assert len(page.answers()) == 3
        page.tab.type("approved")
        page.tab.press("Enter")
        page.tab.until("document.getElementById('word').readOnly", "a new pause after a wrong word")
        page.tab.until("!document.getElementById('word').readOnly")
        page.tab.type("approve")
        page.tab.press("Enter")
        page.nothing_waits()
        assert running.finish().out == b"1\n2\n3\n4\n"
    assert page.answers() == [("page", "once")] * 4
    assert [row["word"] for row in page.broker.events() if row["type"] == "approval.answered"] == [False, False, False, True]


def test_a_key_that_was_meant_for_the_question_before_answers_nothing(page: Page) -> None:
    page.tab.run("""new MutationObserver(() => {
        window.pressed = document.dispatchEvent(new KeyboardEvent('keydown', { key: 'o', bubbles: true, cancelable: true }));
        document.getElementById('once').click();
    }).observe(document.getElementById('question'), { attributes: true, attributeFilter: ['hidden'] })""")
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl")
        assert page.tab.run("window.pressed") is False  # it was heard
        page.tab.press("o", repeated=True)  # nor does one that is held down
        assert page.tab.run("document.getElementById('question').hidden") is False
        assert page.answers() == []
        page.question("curl")
        page.tab.press("d")
        assert running.finish().out == b"126\n"


@pytest.mark.parametrize("word", ["no", "yes"])
def test_a_word_that_somebody_types_is_no_answer(page: Page, word: str) -> None:
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl")
        for letter in word:
            page.tab.press(letter)
        page.question("curl")  # it can be answered, so the letters have been taken
        assert page.answers() == []
        page.tab.press("d")
        assert running.finish().out == b"126\n"


def test_several_wait_in_a_queue_one_on_screen_and_each_gets_its_own_answer(page: Page) -> None:
    with held(page, "curl -s http://a.invalid & a=$!; curl -s http://b.invalid & b=$!; wait $a; echo a $?; wait $b; echo b $?") as running:
        page.tab.until("document.querySelectorAll('#queue li').length === 2")
        page.question("curl")
        first = page.tab.text("#question-title")
        page.tab.press("j")
        page.tab.until(f"document.getElementById('question-title').textContent !== {json.dumps(first)}")
        second = page.tab.text("#question-title")
        assert page.tab.text("#place") == "2 of 2"
        page.tab.press("k")
        page.question(first)
        page.tab.press("j")
        page.question(second)
        page.tab.press("d")
        page.question(first)
        assert page.tab.run("document.getElementById('queue').hidden") is True
        page.tab.press("o")
        page.nothing_waits()
        out = running.finish().out.splitlines()
    assert [line for line in out if line.startswith(b"b" if "b.invalid" in second else b"a")] == [b"b 126" if "b.invalid" in second else b"a 126"]
    assert len([line for line in out if line.endswith(b" 6")]) == 1


def test_a_question_that_is_answered_elsewhere_leaves_the_page(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl")
        (row,) = json.loads(page.broker.verb("approvals", "--json").stdout)
        assert page.broker.verb("approvals", "deny", row["id"]).returncode == 0
        page.nothing_waits()
        assert "does not wait any more" in page.tab.text("#said")
        running.finish()
    assert page.answers() == [("approvals", "deny")]


def test_an_answer_is_for_the_question_that_was_shown_and_for_no_other(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?; curl -s http://b.invalid; echo $?") as running:
        page.question("a.invalid")
        cookie = next(one for one in page.tab.call("Network.getAllCookies")["cookies"] if page.url.startswith(f"http://127.0.0.1:{port(page)}{one['path']}"))
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["session"]) == (True, "Strict", True)
        shown = page.tab.run("fetch('stream').then((one) => one.body.getReader().read()).then((one) => new TextDecoder().decode(one.value))")
        (row,) = json.loads(shown.removeprefix("data: "))["questions"]
        said = {"id": row["id"], "digest": row["digest"], "how": "once", "why": "", "word": ""}
        wrong = row["digest"].translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))

        assert "not the question that you were shown" in post(page, cookie["value"], {**said, "digest": wrong})["reason"]
        assert "does not wait" in post(page, cookie["value"], {**said, "id": f"{row['run']}.7"})["reason"]
        assert "does not wait" in post(page, cookie["value"], {**said, "id": "20261130-000000-0000.1"})["reason"]
        assert page.answers() == []
        assert post(page, cookie["value"], said)["event"] == "answered"
        page.question("b.invalid")
        assert "does not wait" in post(page, cookie["value"], said)["reason"]
        other = {**said, "id": f"{row['run']}.2"}
        assert "not the question that you were shown" in post(page, cookie["value"], other)["reason"]
        page.tab.press("d")
        assert running.finish().out == b"6\n126\n"


def port(page: Page) -> str:
    return page.url.removeprefix("http://127.0.0.1:").partition("/")[0]


def post(page: Page, cookie: str, said: dict[str, str]) -> dict[str, Any]:
    """Answer as the page does, without it."""
    place = page.url.partition("#")[0]
    headers = {"Cookie": f"broker-page={cookie}", "Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port(page)}"}
    asked = urllib.request.Request(f"{place}answer", json.dumps(said).encode(), headers)
    with urllib.request.urlopen(asked, timeout=30) as reply:
        answered: dict[str, Any] = json.load(reply)
        return answered


# --- what is shown


def test_hostile_words_are_shown_as_words_and_nothing_of_them_acts(page: Page) -> None:
    words = " ".join("$'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in HOSTILE)
    script = f"curl {words}; echo $?"
    with held(page, script) as running:
        page.question("curl")
        shown = page.tab.run("[...document.querySelectorAll('.argv code')].map((one) => one.textContent)")
        assert shown[1:] == [*HOSTILE[:4], "\\u202egnp.exe", "\\x1b]0;taken\\x07", *HOSTILE[6:9], " \\t ", "(empty)"]
        marked = page.tab.run("[...document.querySelectorAll('.argv .mark')].map((one) => one.textContent)")
        assert marked == ["\\u202e", "\\x1b", "\\x07", "\\t"]
        page.tab.press("d")
        page.tab.until("document.querySelectorAll('#denials > li').length > 0")
        running.finish()
    for name in ("img", "iframe", "object", "main script", "main style", "main svg", "b", "[onerror]", "[onload]", "main [src]", "main [href]", "[style]:not(#bar)"):
        assert page.tab.run(f"document.querySelectorAll({json.dumps(name)}).length") == 0, name
    assert page.tab.run("document.title") in ("broker", "(1) broker")
    assert page.tab.run("[...document.body.textContent].every((char) => char === '\\n' || !/[\\p{Cc}\\p{Cf}\\p{Co}\\p{Cn}]/u.test(char))")


def test_the_policy_stops_what_would_make_html_of_text(page: Page) -> None:
    for script in ("document.body.innerHTML = '<b>x</b>'", "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')", "eval('1')", "new Function('1')()"):
        # The debugger's own code is no page's: it is run by the page's timer.
        ran = f"new Promise((done) => setTimeout(() => {{ try {{ {script}; done('ran'); }} catch (error) {{ done(error.name); }} }}, 0))"
        assert page.tab.run(ran) in ("TypeError", "EvalError"), script
    page.may_complain = True  # the browser tells of each


def test_trees_and_refusals_are_live_and_each_refusal_says_how_to_allow_it(page: Page) -> None:
    with page.broker.started("bash", "-c", "read go; curl -s http://a.invalid; echo refused; read go", profile="held", stdin=-1) as running:
        page.tab.until("document.querySelector('[data-task] .state-cell.running')")
        assert page.tab.run("document.getElementById('idle').hidden && !document.getElementById('clean').hidden")
        seen = page.tab.text(".run")
        for said in (page.broker.journals()[-1].stem, "bubblewrap", str(page.broker.workspace), "held", "local_write", "trusted", "running", "MiB"):
            assert said in seen, said
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        page.tab.until("document.querySelector('#denials button.row')")
        page.tab.until("document.querySelector('td.denied')?.textContent === '1'")
        assert "curl -s http://a.invalid" in page.tab.text("#denials")
        page.tab.press("j")
        page.tab.until("document.activeElement.matches('#denials button.row')")
        page.tab.press("Enter")
        page.tab.until("document.querySelector('.how h4:nth-of-type(1)') && document.querySelector('.how').innerText.includes('broker events show')")
        text = page.tab.text(".how")
        assert "How to allow it" in text
        name = text.partition("broker events show ")[2].split()[0]
        shown = page.broker.verb("events", "show", name)
        assert shown.returncode == 0
        assert "curl -s http://a.invalid" in shown.stdout
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        running.finish()
    page.tab.until("!document.querySelector('.run')", "the end of the run")


def test_a_broker_that_is_stopped_is_said_to_give_no_answer(page: Page) -> None:
    with page.broker.started("sleep", "100", profile="held") as running:
        page.tab.until("document.querySelector('.state-cell.running')")
        running.process.send_signal(signal.SIGSTOP)
        try:
            page.tab.until("document.querySelector('.run .note')?.textContent.includes('does not answer')")
        finally:
            running.process.send_signal(signal.SIGCONT)
        page.tab.until("document.querySelector('.run') && !document.querySelector('.run .note')")
        running.process.terminate()
        running.finish()


# --- the page itself


def test_the_links_token_is_in_no_address_and_a_reload_comes_in_with_the_cookie(page: Page) -> None:
    assert page.tab.run("location.href") == page.url.partition("#")[0]
    assert page.tab.run("document.cookie") == ""
    page.tab.call("Page.reload")
    page.tab.until("document.readyState === 'complete' && document.getElementById('state')?.dataset.state === 'live'")
    page.tab.call("Network.clearBrowserCookies")
    page.tab.call("Page.reload")
    page.tab.until("document.getElementById('state')?.dataset.state === 'gone'")
    assert "Open the link that broker serve printed" in page.tab.text("#trouble")
    page.may_complain = True  # of the 401


def test_when_the_server_ends_the_page_says_so_and_shows_nothing_that_could_be_old(page: Page) -> None:
    with held(page, "curl -s http://a.invalid; echo $?") as running:
        page.question("curl")
        page.process.terminate()
        page.tab.until("document.getElementById('state').dataset.state === 'gone'")
        page.tab.until("document.getElementById('question').hidden && !document.querySelector('.run')")
        assert page.process.wait(20) == 0
        running.process.terminate()
        running.finish()
    page.may_complain = True


CONTRAST = """(() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((one) => ((one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
    const ground = (node) => { for (let one = node; one; one = one.parentElement) { const found = numbers(getComputedStyle(one).backgroundColor);
        if (found.length < 4 || found[3] > 0) return found; } return [255, 255, 255]; };
    const poor = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const node = walk.currentNode.parentElement;
        if (!walk.currentNode.textContent.trim() || !node.checkVisibility({ visibilityProperty: true }) || node.closest('[aria-disabled=true]')) continue;
        const [one, other] = [light(numbers(getComputedStyle(node).color)), light(ground(node))];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < 4.5) poor.push([node.className, node.textContent.slice(0, 40), ratio.toFixed(2)]);
    }
    return poor;
})()"""


def test_the_page_can_be_read_in_light_and_dark_on_a_narrow_screen_and_without_motion(page: Page) -> None:
    with held(page, f"curl -s http://0.invalid; curl -s http://a.invalid/{'x' * 300} $'\\e[31m' & npm install left-pad", "--ask-timeout", "60s") as running:
        page.question("0.invalid")
        page.tab.press("d")
        page.tab.until("document.querySelectorAll('#queue li').length >= 2 && document.querySelectorAll('#denials li').length >= 1")
        page.question("")
        for scheme in ("light", "dark"):
            page.tab.media("prefers-color-scheme", scheme)
            page.tab.until(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
            assert page.tab.run(CONTRAST) == [], scheme
        page.tab.call("Emulation.setDeviceMetricsOverride", width=340, height=700, deviceScaleFactor=1, mobile=True)
        page.tab.until("innerWidth === 340")
        assert page.tab.run("document.documentElement.scrollWidth") <= 340
        page.tab.media("prefers-reduced-motion", "reduce")
        assert page.tab.run("getComputedStyle(document.getElementById('once')).transitionDuration") == "0s"
        names = page.tab.run("[...document.querySelectorAll('button, input')].filter((one) => !(one.innerText || one.labels?.length || one.ariaLabel)).filter((one) => one.checkVisibility()).length")
        assert names == 0
        running.process.terminate()
        running.process.communicate(timeout=60)


def test_single_keys_can_be_turned_off_and_are_explained(page: Page) -> None:
    page.tab.press("?")
    page.tab.until("document.getElementById('keys').open")
    page.tab.run("document.getElementById('single').click()")
    page.tab.press("Escape")
    page.tab.until("!document.getElementById('keys').open")
    try:
        with held(page, "curl -s http://a.invalid; echo $?") as running:
            page.question("curl")
            page.tab.press("o")
            time.sleep(0.2)  # an answer would have been given by then
            assert page.answers() == []
            page.tab.click("#deny")
            running.finish()
    finally:
        page.tab.run("localStorage.clear()")
    assert page.answers() == [("page", "deny")]


def test_another_page_of_this_host_is_not_sent_the_cookie(page: Page) -> None:
    """A server of another user on the same address: a browser's cookies know no ports."""
    import http.server
    import threading

    seen: list[str] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page.tab.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/stream")
            until(lambda: seen, "the visit")
        finally:
            server.shutdown()
            thread.join()
    assert not [one for one in seen if one]
    page.may_complain = True
