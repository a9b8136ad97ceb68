// The page: which run is shown, and the stream of its events.
import { at, clock, el, fill, say, short } from "/static/words.js";
import { ReturnChart, showPicture } from "/static/overview.js";
import { Panels } from "/static/panels.js";
import { RunList } from "/static/runs.js";

const KEEP_ROWS = 4000, LIST_EVERY_MS = 5000, LINGER_MS = 10000, RETRY_MS = 5000;
const ENDED = ["finished", "interrupted", "failed", "killed"];

const empty = () => ({ tables: {}, notes: [], status: {}, summary: {}, view: {}, videos: [], frame: 0 });

const page = { id: null, data: empty(), about: {}, source: null, lost: false };
const list = new RunList(() => draw());
const returns = new ReturnChart(list);
const panels = new Panels();

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function refreshList() {
  try {
    const found = await ask("/api/runs");
    list.set(found);
    if (page.id === null && location.hash.length < 3) {
      const first = found.first ?? (found.runs.length === 1 ? found.runs[0].id : null);
      if (first) location.replace(`#/${first}`);
    }
    await list.loadCurves(ask, page.id);
    draw();
  } catch {
    page.lost = true;
    banner();
  }
}

async function show(id) {
  page.source?.close();
  Object.assign(page, { id, data: empty(), about: {}, source: null, lost: false });
  returns.forget();
  panels.forget();
  at("run").hidden = id === null;
  list.current = id;
  scrollTo(0, 0);
  if (id === null) return draw();
  try {
    page.about = await ask(`/api/runs/${id}`);
  } catch {
    at("run").hidden = true;
    page.id = null;
    return draw();
  }
  listen();
  list.loadCurves(ask, id).then(draw);
}

function listen() {
  if (page.id === null || document.hidden || page.source) return;
  const source = page.source = new EventSource(`/api/runs/${page.id}/events`);
  source.onmessage = (message) => {
    page.lost = false;
    receive(JSON.parse(message.data));
  };
  source.onerror = () => {
    page.lost = true;
    if (over() || source.readyState === EventSource.CLOSED) stop(source);
    if (!over()) setTimeout(listen, RETRY_MS);
    banner();
  };
}

function stop(source) {
  source.close();
  if (page.source === source) page.source = null;
}

function receive(message) {
  if ("frame" in message && Object.keys(message).length === 1) {
    page.data.frame = message.frame;
    showPicture(page.id, page.data, over());
    return;
  }
  const data = page.data = message.snapshot ? empty() : page.data;
  for (const [role, { columns, rows }] of Object.entries(message.tables ?? {})) {
    const table = data.tables[role] ??= { columns, rows: [] };
    table.columns = columns;
    table.rows.push(...rows);
    if (table.rows.length > KEEP_ROWS) table.rows = table.rows.filter((_, i) => i % 2 === 0);
  }
  data.notes.push(...(message.notes ?? []));
  const wasOver = over();
  for (const name of ["status", "summary", "view", "videos", "frame"]) if (name in message) data[name] = message[name];
  if (over() && !wasOver) {
    const source = page.source;
    refreshList();
    setTimeout(() => source && stop(source), LINGER_MS); // the last video may still arrive
  }
  draw();
}

const over = () => ENDED.includes(page.data.summary.state) || ENDED.includes(page.data.status.state);

function stateOf() {
  const known = list.row(page.id)?.state;
  if (known === "killed") return "killed";
  return page.data.summary.state ?? page.data.status.state ?? "starting";
}

function banner() {
  const node = at("banner");
  let text = "";
  if (stateOf() === "killed") text = "This run was killed before it could write a summary.";
  else if (page.lost && over()) text = "";
  else if (page.lost) text = "Connection lost, retrying. If the run has ended, open it with: spreeze dashboard";
  node.hidden = !text;
  node.textContent = text;
}

function header() {
  const { data, about } = page, config = about.config ?? {}, progress = data.status.progress ?? {};
  if (page.id === null) {
    say("title", list.rows.length ? `Runs in ${list.folder}` : "No runs yet");
    at("state").hidden = true;
    at("facts").replaceChildren();
    document.title = "Spreeze";
    return;
  }
  const state = stateOf();
  say("title", about.name ?? "");
  document.title = `${about.name ?? ""} · Spreeze`;
  const pill = at("state");
  pill.hidden = false;
  pill.textContent = state;
  pill.className = `pill ${ENDED.includes(state) || state === "running" ? state : "starting"}`;
  const s = data.summary, best = s.best_return ?? progress.best_return;
  const facts = [
    ["Task", `${config.env ?? "–"}`], ["Algorithm", config.algo ?? "–"], ["Seed", `${config.seed ?? "–"}`],
    ["Elapsed", clock(s.wall_s ?? progress.time_s)], ["Best return", short(best, 4)],
    ["Env steps", short(s.env_steps ?? progress.env_steps)], ["Updates", short(s.updates ?? progress.updates)],
  ];
  fill(at("facts"), facts, () => facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    header();
    banner();
    list.draw();
    if (page.id === null) return;
    returns.draw(page.id, page.data, page.about);
    showPicture(page.id, page.data, over());
    panels.draw(page.data, page.about, over());
  });
}

const route = () => show(/^#\/[0-9a-f]{16}$/.test(location.hash) ? location.hash.slice(2) : null);

addEventListener("hashchange", route);
// A hidden page closes its stream: browsers allow few connections per server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    page.source?.close();
    page.source = null;
  } else {
    listen();
    refreshList();
  }
});
// The token is in a cookie now, so it does not have to stay in the address bar.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
for (const button of at("axis").children) {
  button.addEventListener("click", () => {
    returns.axis = button.dataset.axis;
    for (const other of at("axis").children) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
}
at("config-filter").addEventListener("input", () => { panels.forgetConfig(); draw(); });
route();
refreshList();
setInterval(() => document.hidden || refreshList(), LIST_EVERY_MS);
