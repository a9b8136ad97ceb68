// The page: which run is shown, and how it is listened to.
import { at, clock, el, fill, say, short } from "/static/words.js";
import { ReturnChart, showPicture } from "/static/overview.js";
import { Panels } from "/static/panels.js";
import { RunList } from "/static/runs.js";

const KEEP_ROWS = 4000, LIST_EVERY_MS = 5000, LINGER_MS = 10000, RETRY_MS = 5000;
const OVER = ["finished", "interrupted", "failed", "killed"];

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
    take(JSON.parse(message.data));
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

function take(news) {
  if ("frame" in news && Object.keys(news).length === 1) {
    page.data.frame = news.frame;
    showPicture(page.id, page.data, over());
    return;
  }
  const data = page.data = news.whole ? empty() : page.data;
  for (const [role, { columns, rows }] of Object.entries(news.tables ?? {})) {
    const table = data.tables[role] ??= { columns, rows: [] };
    table.columns = columns;
    table.rows.push(...rows);
    if (table.rows.length > KEEP_ROWS) table.rows = table.rows.filter((_, i) => i % 2 === 0);
  }
  data.notes.push(...(news.notes ?? []));
  const wasOver = over();
  for (const name of ["status", "summary", "view", "videos", "frame"]) if (name in news) data[name] = news[name];
  if (over() && !wasOver) {
    const source = page.source;
    refreshList();
    setTimeout(() => source && stop(source), LINGER_MS); // the last video may still come
  }
  draw();
}

const over = () => OVER.includes(page.data.summary.state) || OVER.includes(page.data.status.state);

function stateOf() {
  const known = list.row(page.id)?.state;
  if (known === "killed") return "killed";
  return page.data.summary.state ?? page.data.status.state ?? "starting";
}

function banner() {
  const node = at("banner");
  let text = "";
  if (stateOf() === "killed") text = "This run was killed: nothing was left to write down how it ended.";
  else if (page.lost && over()) text = "";
  else if (page.lost) text = "The connection is lost; trying again. If the run has ended, spreeze dashboard shows it.";
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
  pill.className = `pill ${OVER.includes(state) || state === "running" ? state : "starting"}`;
  const s = data.summary, best = s.best_return ?? progress.best_return;
  const facts = [
    ["task", `${config.env ?? "–"}`], ["algorithm", config.algo ?? "–"], ["seed", `${config.seed ?? "–"}`],
    ["elapsed", clock(s.wall_s ?? progress.time_s)], ["best return", short(best, 4)],
    ["env steps", short(s.env_steps ?? progress.env_steps)], ["updates", short(s.updates ?? progress.updates)],
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
// A hidden page does not listen: a browser has few connections for each server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    page.source?.close();
    page.source = null;
  } else {
    listen();
    refreshList();
  }
});
// The token has done its work: it is in a cookie now, and should not stay in the address.
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
