// What is shown, and what a key does. Everything that a task wrote arrives as pieces of text and becomes text nodes: there is no
// way from here to HTML, and the page's Content-Security-Policy (trusted types) would stop one.

// ms that a question has to be on screen, and keys to be left alone, before it takes an answer: fingers are faster than eyes.
const ARMED_AFTER = 600;
const KEPT = 200; // refusals
const $ = (name) => document.getElementById(name);
const MILD = new Set(["safe", "local_write"]);
const MIDDLE = new Set(["code_execution", "install"]);

const questions = new Map(); // by id: the row, and when its time is up on this page's clock
let order = []; // ids, oldest first
let current = null; // the id on screen
let shown = ""; // what of it is on screen
let armedAt = Infinity;
let busy = false;
const trees = new Map();
let runs = [];
const denials = new Map();
const warned = new Set(); // questions whose last seconds were announced

// Making elements

function el(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, String(value));
  }
  made.append(...content.flat().filter((one) => one !== null));
  return made;
}

// Plain, written out, plain, written out …: what is written out is marked, so that it cannot be taken for what was typed.
function words(pieces) {
  return pieces.map((piece, at) => (at % 2 ? el("span", { class: "mark" }, piece) : piece));
}

const text = (pieces) => pieces.join("");
const code = (pieces) => el("code", {}, pieces.length ? words(pieces) : el("span", { class: "empty" }, "(empty)"));
const klass = (name) => el("span", { class: `class ${MILD.has(name) ? "mild" : MIDDLE.has(name) ? "middle" : ""}` }, name);
const set = (node, value) => node.textContent === value || (node.textContent = value);

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes}m ${Math.floor(seconds % 60)}s` : `${Math.floor(minutes / 60)}h ${minutes % 60}m`;
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
const left = (row) => Math.max(0, (row.ends - performance.now()) / 1000);

// What is said last is said together with the question that comes up at the same moment.
let last = "";
function say(sentence) {
  last = sentence;
  $("said").textContent = $("polite").textContent = sentence;
}

// Questions

function facts(row) {
  const list = el("dl", { class: "facts" });
  const fact = (name, ...content) => list.append(el("div", {}, el("dt", {}, name), el("dd", {}, ...content)));
  const rule = (name) => el("span", { class: "rule" }, ` ${name}`);
  fact("why", row.reasons.map((one) => el("p", {}, words(one.text), rule(`${one.class}, ${one.rule}`))));
  fact("refused by", words(row.reason), rule(row.rule));
  if (row.argv.length) {
    fact("program", code(row.program ?? []), el("p", { class: "rule" }, row.sha256 ? `sha256 ${row.sha256}` : "its content is not known"));
    if (row.cwd) fact("folder", code(row.cwd));
    const argv = row.argv.map((word, at) => el("li", {}, el("span", { class: "number" }, String(at)), code(word)));
    fact("arguments", el("ol", { class: "argv" }, argv));
    if (row.files.length) fact("it names", row.files.map((one) => el("p", {}, code(one.path), one.to.length ? [" → ", code(one.to)] : null,
      rule(`${one.kind}, argument ${one.word}${one.sha256 ? `, sha256 ${one.sha256.slice(0, 12)}…` : ""}`))));
    if (row.env.length) fact("variables", row.env.map((one) => el("p", {}, code(one))));
  } else {
    if (row.path) fact("path", code(row.path));
    if (row.other) fact("other path", code(row.other));
  }
  if (row.content) fact("content", row.content);
  if (row.shell.length) fact("in the shell", el("code", { class: "block" }, row.shell.map((part, at) => el("span", { class: at === 1 ? "asked" : "" }, words(part)))), row.shell_cut ? el("p", { class: "rule" }, "There is more of it than is shown.") : null);
  if (row.diff) {
    const kind = (line) => ({ "+": "added", "-": "removed" })[line[0]?.[0]] ?? "";
    const lines = row.diff.lines.map((line) => el("span", { class: `line ${kind(line)}` }, words(line)));
    fact("change", lines.length ? el("code", { class: "block" }, lines) : null, el("p", { class: "rule" }, row.diff.notes.join("; ")));
  }
  if (row.by.length) fact("asked by", row.by.map((one, at) => [at ? " started by " : "", code(one)]).flat(), row.pid ? rule(`process ${row.pid}`) : null);
  for (const [name, value] of row.more) fact(name, code(value));
  return list;
}

const wants = (row) =>
  row.argv.length ? "wants to start a program" : row.path ? `wants to ${row.action || "change"} a path` : `wants to use ${row.tool}`;

function select(id) {
  current = id;
  draw();
}

// Show the question that is meant. Where it is already on screen, nothing moves: the focus and what is typed stay.
function draw() {
  if (!order.includes(current)) current = order[0] ?? null;
  const row = questions.get(current);
  $("nothing").hidden = Boolean(row);
  $("question").hidden = !row;
  drawQueue();
  const now = row ? `${current} ${row.digest} ${row.session}` : "";
  if (now === shown) return;
  const had = $("question").contains(document.activeElement) || document.activeElement === document.body;
  shown = now;
  back();
  if (!row) return;
  arm();
  $("class").replaceChildren(klass(row.class));
  $("who").replaceChildren(el("code", {}, words(row.task)), ` ${wants(row)}`);
  $("question-title").replaceChildren(...words(row.what));
  $("details").replaceChildren(facts(row));
  $("session").hidden = !row.session;
  tick();
  if (had) $("question").focus({ preventScroll: true });
  $("polite").textContent = `${last} Question: ${row.class}. ${text(row.task)} ${wants(row)}: ${text(row.what)}. ${Math.round(left(row))} seconds left.`;
  last = "";
}

function arm() {
  armedAt = performance.now() + ARMED_AFTER;
  for (const button of $("buttons").children) button.setAttribute("aria-disabled", "true");
  setTimeout(() => {
    if (performance.now() < armedAt || busy) return;
    for (const button of $("buttons").children) button.setAttribute("aria-disabled", "false");
  }, ARMED_AFTER + 1);
}

const armed = () => performance.now() >= armedAt && !busy && !document.hidden;

function drawQueue() {
  const many = order.length > 1;
  $("queue").hidden = !many;
  set($("place"), many && current ? `${order.indexOf(current) + 1} of ${order.length}` : "");
  const known = new Map([...$("queue").children].map((item) => [item.dataset.id, item]));
  for (const [id, item] of known) if (!order.includes(id) || !many) item.remove();
  if (!many) return;
  order.forEach((id, at) => {
    let item = known.get(id);
    if (!item) {
      const row = questions.get(id);
      const button = el("button", { type: "button" }, klass(row.class), code(row.what), el("span", { class: "left" }));
      button.addEventListener("click", () => select(id));
      item = el("li", { "data-id": id }, button);
    }
    item.firstChild.setAttribute("aria-current", String(id === current));
    if ($("queue").children[at] !== item) $("queue").insertBefore(item, $("queue").children[at] ?? null);
  });
}

function tick() {
  const row = questions.get(current);
  if (row) {
    const seconds = left(row);
    set($("left"), `${clock(seconds)} left`);
    $("question").classList.toggle("late", seconds < 15);
    $("left").parentElement.classList.toggle("late", seconds < 15);
    $("bar").style.transform = `scaleX(${Math.min(1, seconds / row.patience)})`;
    if (seconds < 15 && !warned.has(current)) {
      warned.add(current);
      $("polite").textContent = `${Math.round(seconds)} seconds left to answer.`;
    }
  }
  for (const item of $("queue").children) set(item.querySelector(".left"), clock(left(questions.get(item.dataset.id) ?? { ends: 0 })));
  for (const cell of document.querySelectorAll("[data-since]")) set(cell, duration((performance.now() - cell.dataset.since) / 1000));
}

// Back to the buttons, whatever was begun.
function back() {
  $("word-form").hidden = $("why-form").hidden = true;
  $("buttons").hidden = false;
  $("word").value = $("reason").value = "";
}

async function post(name, table) {
  return fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(table) });
}

// Answer the question that is on screen, as it was when it came there.
async function answer(how, { why = "", word = "" } = {}) {
  const row = questions.get(current);
  if (!row || busy || `${row.id} ${row.digest} ${row.session}` !== shown) return;
  busy = true;
  let said;
  try {
    const response = await post("answer", { id: row.id, digest: row.digest, how, why, word });
    said = response.ok ? await response.json() : { event: "refused", reason: (await response.text()).trim() };
  } catch {
    said = { event: "refused", reason: "broker serve does not answer" };
  }
  busy = false;
  if (said.event === "word") {
    askForWord(row, how, said);
  } else if (said.event === "answered") {
    say(`${{ once: "Approved once", session: "Approved for the session", deny: "Denied" }[how]}: ${text(row.what)}`);
    forget(row.id);
  } else {
    say(`Not answered: ${said.reason}.`);
    back();
    arm();
  }
}

// Several were approved just now. The field takes nothing until the pause is over, so what is typed ahead is lost.
function askForWord(row, how, { word, pause }) {
  if (current !== row.id) return;
  const field = $("word");
  $("buttons").hidden = $("why-form").hidden = true;
  $("word-form").hidden = false;
  $("word-form").dataset.how = how;
  $("word-label").textContent = `Several were approved just now. Read this one, and type ${word} to approve it.`;
  $("word-note").textContent = "A moment …";
  field.value = "";
  field.readOnly = true;
  field.focus();
  const begun = (field.dataset.begun = String(performance.now()));
  setTimeout(() => {
    if (field.dataset.begun !== begun) return;
    field.value = "";
    field.readOnly = false;
    $("word-note").textContent = "Now.";
  }, pause * 1000 + 150);
}

function forget(id) {
  const at = order.indexOf(id);
  order = order.filter((one) => one !== id);
  questions.delete(id);
  if (current === id) current = order[Math.min(at, order.length - 1)] ?? null;
  draw();
  drawCounts();
}

// Trees

const HEADINGS = [["task", ""], ["profile", ""], ["up to", ""], ["trust", ""], ["state", ""], ["denied", "n"], ["CPU", "n"], ["memory", "n"], ["time", "n"], ["what it does", "what"]];

function drawTree(tree) {
  const old = document.querySelector(`[data-run="${CSS.escape(tree.run)}"]`);
  const count = tree.tasks.filter((one) => !one.over).length;
  const title = el("h3", {}, tree.run, el("span", {}, `${text(tree.engine)}`), el("span", {}, text(tree.workspace)),
    el("span", {}, `${count} of ${tree.tasks.length} ${tree.tasks.length === 1 ? "task runs" : "tasks run"}`));
  const made = el("div", { class: "run", "data-run": tree.run }, title);
  if (tree.silent) made.append(el("p", { class: "note" }, "Its broker does not answer. It may be stopped; its tasks are held until it goes on."));
  const head = el("thead", {}, el("tr", {}, HEADINGS.map(([name, kind]) => el("th", { scope: "col", class: kind }, name))));
  if (tree.tasks.length) made.append(el("table", { "aria-label": `Tasks of ${tree.run}` }, head, el("tbody", {}, tree.tasks.map((task) => taskRow(tree, task)))));
  if (!old) $("runs").append(made);
  else if (!patched(old, made)) old.replaceWith(made);
}

// Where the same tasks are there, only cells change: who reads the table, or marks something in it, keeps his place.
function patched(old, made) {
  const tasks = (node) => [...node.querySelectorAll("tr")].map((row) => row.dataset.task).join(" ");
  if (tasks(old) !== tasks(made) || old.childElementCount !== made.childElementCount) return false;
  const cells = [...made.querySelectorAll("td, h3")];
  [...old.querySelectorAll("td, h3")].forEach((cell, at) => {
    if (!cell.isEqualNode(cells[at])) cell.replaceWith(cells[at]);
  });
  [...old.querySelectorAll("tr")].forEach((row, at) => (row.className = made.querySelectorAll("tr")[at].className));
  return true;
}

function taskRow(tree, task) {
  const began = performance.now() - (task.seconds + (task.over ? 0 : tree.age)) * 1000;
  const cell = (label, kind, ...content) => el("td", { class: kind, "data-label": label }, ...content);
  return el("tr", { class: task.over ? "over" : "", "data-task": task.id },
    el("td", {}, el("span", { class: `d${Math.min(5, task.depth)}` }, task.place)),
    cell("profile", "", words(task.profile)),
    cell("up to", "", klass(task.ceiling)),
    cell("trust", task.trust === "trusted" ? "" : "untrusted", task.trust),
    el("td", {}, el("span", { class: `state-cell ${task.state}` }, task.state)),
    cell("denied", task.denied ? "n denied" : "n", String(task.denied)),
    cell("CPU", "n", `${task.cpu.toFixed(1)} s`),
    cell("memory", "n", `${Math.floor(task.memory / 1048576)} MiB`),
    cell("time", "n", el("span", { "data-since": task.over ? null : began }, duration(task.seconds))),
    el("td", { class: "what" }, code(task.what)));
}

// Refusals

function drawDenial(row) {
  const known = denials.get(row.name);
  const item = known?.item ?? el("li", { "data-name": row.name });
  if (!known) {
    const button = el("button", { type: "button", class: "row", "aria-expanded": "false" });
    button.addEventListener("click", () => open(row.name));
    item.append(button);
  }
  const when = row.at ? el("time", {}, new Date(row.at * 1000).toLocaleTimeString([], { hour12: false })) : el("time", {}, "earlier");
  const times = row.count > 1 ? `×${row.count}` : "";
  item.firstChild.replaceChildren(when, klass(row.class), code(row.what), el("span", { class: "times" }, times), el("span", { class: "where" }, row.id));
  denials.set(row.name, { row, item });
  // The newest is on top. One that is being read stays where it is.
  if (!known || !item.contains(document.activeElement)) $("denials").prepend(item);
  while (denials.size > KEPT) {
    const last = $("denials").lastElementChild;
    denials.delete(last.dataset.name);
    last.remove();
  }
}

async function open(name) {
  const { row, item } = denials.get(name);
  const button = item.firstChild;
  const wide = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!wide));
  item.querySelector(".how")?.remove();
  if (wide) return;
  const part = (title, ...content) => el("div", {}, el("h4", {}, title), el("p", {}, ...content));
  const how = el("div", { class: "how" }, part("Why", words(row.reason), el("span", { class: "rule" }, ` ${row.rule}`)), part("Instead", words(row.hint)));
  item.append(how);
  let said;
  try {
    const response = await fetch(`denial?${name}`);
    said = response.ok ? await response.json() : { reason: (await response.text()).trim() };
  } catch {
    said = { reason: "broker serve does not answer" };
  }
  const found = said.id
    ? [part("How to allow it", said.how), el("p", {}, el("code", {}, `broker events show ${said.id}`))]
    : [part("How to allow it", said.reason)];
  how.append(...found);
}

// News

function take(news) {
  const fresh = performance.now();
  if (news.whole) {
    for (const known of [trees, denials, questions]) known.clear();
    for (const name of ["runs", "denials"]) $(name).replaceChildren();
  }
  for (const row of news.questions ?? []) questions.set(row.id, { ...row, ends: fresh + row.left * 1000 });
  if (news.waiting) {
    order = news.waiting.filter((id) => questions.has(id));
    for (const id of [...questions.keys()]) if (!order.includes(id)) questions.delete(id);
    if (current && !order.includes(current)) say(`${current} does not wait any more.`);
  }
  draw();
  if (news.runs) {
    runs = news.runs;
    for (const run of [...trees.keys()].filter((one) => !runs.includes(one))) {
      trees.delete(run);
      document.querySelector(`[data-run="${CSS.escape(run)}"]`)?.remove();
    }
  }
  for (const tree of news.trees ?? []) {
    trees.set(tree.run, tree);
    drawTree(tree);
  }
  for (const row of (news.denied ?? []).sort((one, other) => one.order - other.order)) drawDenial(row);
  drawCounts();
}

function drawCounts() {
  const tasks = [...trees.values()].flatMap((tree) => tree.tasks).filter((task) => !task.over).length;
  $("idle").hidden = trees.size > 0;
  $("clean").hidden = denials.size > 0;
  set($("counts"), `${order.length} ${order.length === 1 ? "waits" : "wait"} · ${tasks} ${tasks === 1 ? "task runs" : "tasks run"}`);
  document.title = order.length ? `(${order.length}) broker` : "broker";
}

function state(name, word, trouble = "") {
  $("state").dataset.state = name;
  set($("state"), word);
  $("trouble").hidden = !trouble;
  set($("trouble"), trouble);
}

function listen() {
  const source = new EventSource("stream");
  source.addEventListener("open", () => state("live", "live"));
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    take({ whole: true, waiting: [], runs: [] });
    if (source.readyState === EventSource.CLOSED) state("gone", "not connected", "Open the link that broker serve printed: this browser has no way in, or too many pages are open.");
    else state("gone", "not connected", "broker serve does not answer. When it has ended, start it again and open its new link.");
  });
}

// Keys and buttons

const ACTIONS = {
  o: () => answer("once"),
  s: () => !$("session").hidden && answer("session"),
  d: () => answer("deny"),
  w: () => {
    $("buttons").hidden = true;
    $("why-form").hidden = false;
    $("reason").focus();
  },
};

function act(key) {
  if (questions.has(current) && !$("buttons").hidden && armed()) ACTIONS[key]();
}

function move(step) {
  if (order.length) {
    const next = order[order.indexOf(current) + step];
    if (next) select(next);
    return;
  }
  const rows = [...$("denials").querySelectorAll("button.row")];
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + step))]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || $("keys").open) return;
  if (event.key === "Escape" && $("buttons").hidden) {
    back();
    arm();
    $("question").focus();
  }
  if (event.target instanceof HTMLInputElement || !$("single").checked) return;
  if (event.key in ACTIONS) {
    event.preventDefault(); // or the key would be the first letter of the reason
    if (event.repeat || !armed()) arm();
    else act(event.key);
  } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "?") $("keys").showModal();
  else if (/^[^ ]$/u.test(event.key)) arm(); // it may be the beginning of a word, no for example, whose next letter is a key
});

for (const [name, key] of [["once", "o"], ["session", "s"], ["deny", "d"], ["why", "w"]]) $(name).addEventListener("click", () => act(key));
for (const button of document.querySelectorAll(".cancel")) button.addEventListener("click", () => (back(), arm(), $("question").focus()));
$("word").addEventListener("paste", (event) => event.preventDefault());
$("word").addEventListener("drop", (event) => event.preventDefault());
$("word-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("word").readOnly) answer($("word-form").dataset.how, { word: $("word").value.trim() });
});
$("why-form").addEventListener("submit", (event) => {
  event.preventDefault();
  answer("deny", { why: $("reason").value.trim() });
});
$("help").addEventListener("click", () => $("keys").showModal());
$("close").addEventListener("click", () => $("keys").close());
$("single").checked = localStorage.getItem("single-keys") !== "off";
$("single").addEventListener("change", () => localStorage.setItem("single-keys", $("single").checked ? "on" : "off"));
document.addEventListener("visibilitychange", () => document.hidden || arm());
setInterval(tick, 250);

// The link's token, once, for a cookie; and out of the address, so that it is in no history and no picture of the screen.
const token = location.hash.slice(1);
if (/^[\w-]{20,}$/.test(token)) {
  history.replaceState(null, "", location.pathname);
  const response = await post("session", { token }).catch(() => null);
  if (!response?.ok) state("gone", "not connected", "This is not the link that broker serve printed, or it has ended.");
}
if ($("state").dataset.state !== "gone") listen();
