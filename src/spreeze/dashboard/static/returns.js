// The first row: the evaluation return with other runs behind it, and the live picture of the policy.
import { at, clock, el, fill, say, short } from "/static/words.js";
import { Chart, columns } from "/static/charts.js";

const MAX_GHOSTS = 8;
const COMPARED = ["c1", "c2", "c3", "c4", "c5", "c6"];

export class ReturnChart {
  constructor(list) {
    this.list = list;
    this.axis = "time_s";
    this.chart = null;
    this.shape = "";
  }

  forget() {
    this.shape = "";
  }

  draw(id, data, about) {
    const own = columns(data.tables["evaluator-0"], this.axis,
      ["eval/mean_reward", "eval/min_reward", "eval/max_reward"]) ?? [[], [], [], []];
    const { compared, ghosts } = this.others(id, about);
    const names = [...compared.map((row) => row.id), "|", ...ghosts.map((row) => row.id)].join();
    if (this.shape !== names + id) {
      this.shape = names + id;
      this.build(compared, ghosts, about);
    }
    const position = ["time_s", "env_steps", "updates"].indexOf(this.axis);
    const others = [...ghosts, ...compared].map((row) => {
      const points = this.list.curves.get(row.id).filter((p) => p[position] !== null);
      return [points.map((p) => p[position]), points.map((p) => p[3])];
    });
    const tables = [...others, own].map(sorted).filter((table) => table[0].length);
    const present = [...others, own].map((table) => table[0].length > 0);
    const joined = tables.length ? uPlot.join(tables) : [[]];
    // Tables without points are not joined. Their columns stay empty.
    const out = [joined[0]];
    let column = 1;
    [...others, own].forEach((table, i) => {
      for (let k = 1; k < table.length; k++) out.push(present[i] ? joined[column++] : joined[0].map(() => null));
    });
    this.chart.set(own[0].length ? out : null, waiting(data), this.axis);
  }

  others(id, about) {
    const env = about.config?.env, known = this.list.rows.filter((row) => row.id !== id && this.list.curves.get(row.id)?.length);
    const compared = known.filter((row) => this.list.checked.has(row.id)).slice(0, COMPARED.length);
    const ghosts = known.filter((row) => row.env === env && !compared.includes(row)).slice(0, MAX_GHOSTS);
    return { compared, ghosts };
  }

  build(compared, ghosts, about) {
    this.chart?.remove();
    const format = (v) => short(v, 4);
    const own = ghosts.length + compared.length + 1;
    this.chart = new Chart(at("return-chart"), {
      height: innerWidth < 700 ? 220 : 330,
      axis: this.axis,
      hlines: [{ value: about.config?.target, colour: "faint" }],
      bands: [{ series: [own + 2, own + 1], fill: () => getComputedStyle(document.documentElement).getPropertyValue("--band") }],
      series: [
        ...ghosts.map((row) => ({ label: row.name, colour: "ghost", width: 1.25, format, legend: false })),
        ...compared.map((row, i) => ({ label: row.name, colour: COMPARED[i], width: 1.75, format })),
        { label: "Evaluation mean", colour: "return", width: 2.5, format },
        { label: "Min", colour: "clear", width: 0, format },
        { label: "Max", colour: "clear", width: 0, format },
      ],
    });
    const notes = [];
    if (ghosts.length) notes.push(el("span", { class: "key" }, el("i", { class: "dot c-ghost" }),
      `${ghosts.length} other ${ghosts.length === 1 ? "run" : "runs"} of this task`));
    if (about.config?.target !== null && about.config?.target !== undefined)
      notes.push(el("span", { class: "key" }, el("i", { class: "dash" }), "Target ", el("b", {}, format(about.config.target))));
    const foot = el("div", { class: "legend foot" }, ...notes);
    at("return-chart").append(foot);
  }
}

// A resumed run continues the counts of another, but uPlot needs ascending positions.
function sorted(table) {
  const [xs, ...rest] = table;
  if (xs.every((x, i) => i === 0 || xs[i - 1] <= x)) return table;
  const order = xs.map((_, i) => i).sort((a, b) => xs[a] - xs[b]);
  return [order.map((i) => xs[i]), ...rest.map((ys) => order.map((i) => ys[i]))];
}

function waiting(data) {
  const progress = data.status.progress;
  if (data.summary.state) return "This run ended before its first evaluation.";
  if (!progress) return "The run is starting.";
  if (!progress.updates) return `Collecting the first transitions: ${short(progress.env_steps)} env steps so far.`;
  return "Learning. The first evaluation is in progress.";
}

const shown = { frame: 0, id: null };

export function showPicture(id, data, over) {
  const { frame, view, videos } = data, image = at("picture");
  if (frame && (frame !== shown.frame || id !== shown.id)) {
    Object.assign(shown, { frame, id });
    const next = new Image();
    next.onload = () => { image.src = next.src; };
    next.src = `/api/runs/${id}/frame?${frame}`;
  }
  image.hidden = !frame;
  say("picture-empty", frame ? "" : noPicture(data, over));
  at("picture-empty").hidden = Boolean(frame);
  say("picture-note", frame && view.updates !== undefined
    ? `${view.filming ? `Recording the ${view.filming} · return` : "Return"} so far ${short(view.return, 4)} · after ${short(view.updates)} updates` : "");
  say("h-picture", over ? "Last picture of the policy" : "Live policy");
  showVideos(id, videos, data);
}

function noPicture(data, over) {
  if (data.view.problem) return `No picture: ${data.view.problem}.`;
  if (over) return "This run was not rendered.";
  const pids = data.status.pids ?? {};
  if (!data.status.state) return "Waiting for the run.";
  if (!("visualizer-0" in pids)) return "Rendering is off. Turn it on with --visualizer.draw on.";
  return data.status.progress?.updates ? "Rendering the first picture." : "Waiting for the first policy.";
}

function showVideos(id, videos, data) {
  const player = at("player");
  fill(at("videos"), [id, videos], () => {
    player.hidden = true;
    player.removeAttribute("src");
    const order = [...videos].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    return order.map((name) => el("button", { type: "button", onclick: () => {
      player.src = `/api/runs/${id}/videos/${name}`;
      player.hidden = false;
      player.play().catch(() => {});
    } }, "▶ ", nameOf(name)));
  });
}

const rank = (name) => (name.startsWith("first") ? 0 : name.startsWith("last") ? 2 : 1);

function nameOf(name) {
  const match = /^0*(\d+)-best\.mp4$/.exec(name);
  return match ? `Best at ${short(Number(match[1]))} updates` : name === "first.mp4" ? "First policy" : name === "last.mp4" ? "Best at the end" : name;
}
