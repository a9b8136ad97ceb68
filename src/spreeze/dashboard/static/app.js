// The page: which run is shown, and the stream of its events.
import { at, clock, el, fill, plural, say, short } from "/static/words.js";
import { columns } from "/static/charts.js";
import { ReturnChart } from "/static/returns.js";
import { showPicture } from "/static/picture.js";
import { Panels } from "/static/panels.js";
import { RunList } from "/static/runs.js";
import { drawTrials } from "/static/trials.js";
import { TaskPanels, comparison, position } from "/static/compare.js";

const KEEP_ROWS = 4000, LIST_EVERY_MS = 5000, LINGER_MS = 10000, RETRY_MS = 5000;
const ENDED = ["finished", "interrupted", "failed", "killed"];
const RETURN = "eval/mean_reward", EVALUATION = [RETURN, "eval/min_reward", "eval/max_reward"];

// `loaded`: whether the first message about the run has arrived.
const empty = () => ({ loaded: false, tables: {}, notes: [], status: {}, summary: {}, view: {}, videos: [], frame: 0 });

const page = { id: null, data: empty(), about: {}, source: null, lost: false, missing: false, axis: "time_s" };
const list = new RunList(() => { draw(); list.loadCurves(ask).then(draw); });
const returns = new ReturnChart(at("return-chart"));
const panels = new Panels();
const tasks = new TaskPanels(list);

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function refreshList() {
  try {
    const found = await ask("/api/runs"), first = !list.loaded;
    list.set(found);
    page.lost = page.lost && page.id !== null && !over();
    const only = found.first ?? (found.runs.length === 1 && !found.sweep ? found.runs[0].id : null);
    if (first && page.id === null && location.hash.length < 3 && only) return location.replace(`#/${only}`);
    await list.loadCurves(ask);
  } catch {
    page.lost = true;
  }
  draw();
}

async function show(id) {
  page.source?.close();
  Object.assign(page, { id, data: empty(), about: {}, source: null, lost: false, missing: false });
  returns.forget();
  panels.forget();
  list.current = id;
  openList(false);
  scrollTo(0, 0);
  draw();
  if (id === null) return;
  try {
    const about = await ask(`/api/runs/${id}`);
    if (page.id !== id) return; // another run was opened in between
    page.about = about;
  } catch {
    if (page.id !== id) return;
    Object.assign(page, { id: null, missing: true });
    list.current = null;
    return draw();
  }
  listen();
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
    draw();
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
  const wasOver = over(), data = page.data = message.snapshot ? empty() : page.data;
  data.loaded = true;
  for (const [role, { columns, rows }] of Object.entries(message.tables ?? {})) {
    const table = data.tables[role] ??= { columns, rows: [] };
    table.columns = columns;
    table.rows.push(...rows);
    if (table.rows.length > KEEP_ROWS) table.rows = table.rows.filter((_, i) => i % 2 === 0);
  }
  data.notes.push(...(message.notes ?? []));
  for (const name of ["status", "summary", "view", "videos", "frame"]) if (name in message) data[name] = message[name];
  if (over() && !wasOver) {
    const source = page.source;
    refreshList();
    setTimeout(() => source && stop(source), LINGER_MS); // the last video may still arrive
  }
  draw();
}

function state() {
  if (list.row(page.id)?.state === "killed") return "killed"; // its status.json still says running
  return page.data.summary.state ?? page.data.status.state ?? "starting";
}

const over = () => ENDED.includes(state());

function banner() {
  const running = page.id !== null && !over(), why = page.data.summary.stop_reason;
  let text = "";
  if (page.missing) text = "There is no such run in this folder.";
  else if (page.lost && running) text = "Connection lost, retrying. If the run has ended, open it with: spreeze dashboard";
  else if (page.lost) text = "This page is no longer served. Open it again with: spreeze dashboard";
  else if (page.id !== null && state() === "killed") text = "This run was killed before it could write a summary.";
  else if (page.id !== null && why) text = `This run ${state() === "failed" ? "failed" : "was stopped"}: ${String(why).replace(/\.$/, "")}.`;
  at("banner").hidden = !text;
  say("banner", text);
}

function header() {
  const { data, about } = page, config = about.config ?? {}, progress = data.status.progress ?? {};
  at("state").hidden = page.id === null || !data.loaded;
  at("facts").hidden = page.id === null || !data.loaded;
  if (page.id === null) {
    say("title", !list.loaded ? "Loading runs" : list.rows.length ? "All runs" : "No runs yet");
    document.title = "Spreeze";
    return;
  }
  const name = about.name ?? list.row(page.id)?.name, now = state();
  say("title", name ?? "Loading the run");
  document.title = `${name ?? "Run"} · Spreeze`;
  const pill = at("state");
  pill.textContent = now;
  pill.className = `pill ${ENDED.includes(now) || now === "running" ? now : "starting"}`;
  const s = data.summary, best = s.best_return ?? progress.best_return;
  const facts = [
    ["Task", `${config.env ?? "–"}`], ["Algorithm", config.algo ?? "–"], ["Seed", `${config.seed ?? "–"}`],
    ["Elapsed", clock(s.wall_s ?? progress.time_s)], ["Best return", short(best, 4)],
    ["Env steps", short(s.env_steps ?? progress.env_steps)], ["Updates", short(s.updates ?? progress.updates)],
  ];
  fill(at("facts"), facts, () => facts.map(([title, value]) => el("div", {}, el("dt", {}, title), el("dd", {}, value))));
}

// The open run, and the ticked runs of its task.
function drawReturns() {
  const { id, data, about, axis } = page, env = list.row(id)?.env ?? about.config?.env;
  const others = list.tasks().get(env) ?? [], own = columns(data.tables["evaluator-0"], axis, EVALUATION) ?? [[], [], [], []];
  const runs = [{ id, name: about.name ?? "", colour: list.colour(id), data: own }, ...others.map((row) => list.line(row, position(axis)))];
  const ofReturn = (about.config?.target_metric ?? RETURN) === RETURN;
  returns.draw(runs, axis, waiting(data), ofReturn ? about.config?.target ?? null : null);
  const elsewhere = [...list.tasks()].filter(([task]) => task !== env).flatMap(([, rows]) => rows).length;
  say("return-note", elsewhere ? `${plural(elsewhere, "ticked run")} of other tasks under All runs` : "");
  const rows = [list.row(id), ...others].filter(Boolean);
  at("comparison").hidden = rows.length < 2;
  fill(at("comparison-table"), rows.map((row) => [row, list.colour(row.id)]), () => (rows.length > 1 ? [comparison(list, rows)] : []));
}

function waiting(data) {
  const progress = data.status.progress;
  if (over()) return "This run ended before its first evaluation.";
  if (!progress) return "The run is starting.";
  if (!progress.updates) return `Collecting the first transitions: ${short(progress.env_steps)} env steps so far.`;
  return "Learning. The first evaluation is in progress.";
}

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const open = page.id !== null;
    document.body.dataset.page = open ? "run" : "folder";
    document.body.classList.toggle("comparing", list.ticked.size > 0);
    header();
    banner();
    list.draw();
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === page.axis));
    at("loading").hidden = open ? page.data.loaded : list.loaded;
    at("runs").hidden = !list.loaded;
    drawTrials(open ? null : list.sweep, list);
    at("run").hidden = !open || !page.data.loaded;
    at("folder").hidden = open || !list.loaded;
    if (!open) return tasks.draw(page.axis);
    if (!page.data.loaded) return;
    drawReturns();
    showPicture(page.id, page.data, over());
    panels.draw(page.data, page.about, over());
  });
}

// With an open run the list is a drawer; on the folder's page it is always there.
function openList(open) {
  document.body.classList.toggle("listing", open);
  at("open-runs").setAttribute("aria-expanded", String(open));
}

const route = () => show(/^#\/[0-9a-f]{16}$/.test(location.hash) ? location.hash.slice(2) : null);

addEventListener("hashchange", route);
addEventListener("keydown", (event) => event.key === "Escape" && openList(false));
at("open-runs").addEventListener("click", () => {
  if (page.id === null) scrollTo(0, 0);
  else openList(!document.body.classList.contains("listing"));
});
at("close-runs").addEventListener("click", () => openList(false));
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
for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    page.axis = button.dataset.axis;
    draw();
  });
}
at("config-filter").addEventListener("input", () => { panels.forgetConfig(); draw(); });
route();
refreshList();
setInterval(() => document.hidden || refreshList(), LIST_EVERY_MS);
