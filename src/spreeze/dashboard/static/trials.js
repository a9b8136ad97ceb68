// The trials of a sweep, on the page of its folder: the best first, then those without a score.
import { at, clock, el, fill, plural, say, short } from "/static/words.js";

const SVG = "http://www.w3.org/2000/svg", WIDE = 88, HIGH = 22, EDGE = 2;

export function drawTrials(sweep, list) {
  at("trials").hidden = !sweep;
  if (!sweep) return;
  const trials = sweep.rows.map((trial) => ({ ...trial, state: state(trial, list) }));
  const sign = sweep.lower_is_better ? 1 : -1, scored = (trial) => trial.score !== null;
  trials.sort((a, b) => scored(b) - scored(a) || (scored(a) ? sign * (a.score - b.score) : b.number - a.number));
  const knobs = [...new Set(trials.flatMap((trial) => Object.keys(trial.values)))];
  const done = trials.filter((trial) => ["finished", "pruned", "failed"].includes(trial.state)).length;
  say("trials-note", `${done} of ${plural(sweep.trials ?? 0, "trial")} done, ordered by ${sweep.score}`);
  fill(at("trials-head"), knobs, () => [el("tr", {}, ...["Trial", "State", sweep.score, "Curve"].map(title),
    ...knobs.map((knob) => el("th", { scope: "col" }, el("code", {}, knob))), ...["Took", ""].map(title))]);
  const all = trials.flatMap((trial) => trial.curve);
  const range = [Math.min(...all), Math.max(...all)];
  fill(at("trials-body"), [trials, knobs, range, list.rows.map((row) => row.name)], () => trials.map((trial) => line(trial, knobs, range, list)));
}

// The page of a sweep that was killed still says that its last trials run.
function state(trial, list) {
  const newest = list.rows.find((row) => trial.runs.includes(row.name));
  return trial.state === "running" && newest?.state === "killed" ? "killed" : trial.state;
}

const title = (text) => el("th", { scope: "col" }, text);

function line(trial, knobs, range, list) {
  const runs = trial.runs.map((name) => list.rows.find((row) => row.name === name)).filter(Boolean);
  const name = runs.length ? el("a", { href: `#/${runs[0].id}` }, `${trial.number}`) : `${trial.number}`;
  return el("tr", {}, el("td", {}, name), el("td", {}, el("span", { class: `pill ${trial.state}` }, trial.state)),
    el("td", { class: "num" }, short(trial.score, 4)), el("td", {}, curve(trial.curve, range)),
    ...knobs.map((knob) => el("td", { class: "num" }, trial.values[knob] ?? "–")),
    el("td", { class: "num" }, clock(trial.seconds ?? NaN)), el("td", { class: "dim" }, trial.cause));
}

// The value after each part of a trial's way, on the scale of all trials.
function curve(values, [low, high]) {
  if (values.length < 2) return "";
  const x = (i) => EDGE + ((WIDE - 2 * EDGE) * i) / (values.length - 1);
  const y = (value) => HIGH - EDGE - ((HIGH - 2 * EDGE) * (value - low)) / (high - low || 1);
  const picture = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "polyline");
  picture.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
  picture.setAttribute("class", "spark");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `from ${short(values[0])} to ${short(values.at(-1))}`);
  path.setAttribute("points", values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  picture.append(path);
  return picture;
}
