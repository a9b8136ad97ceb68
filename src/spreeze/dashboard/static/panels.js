// Everything below the first row: pipeline, rates, CPU and GPU, lag, replay, tuner, losses, faults, configuration.
import { at, clock, el, fill, metricName, percent, plural, saidName, say, setting, short } from "/static/words.js";
import { Chart, columns, last } from "/static/charts.js";
import { showStrip } from "/static/strip.js";

const RATES = [
  ["perf/sample_hz", "Sampling", "env steps/s", "sampler", "Added to the replay buffer"],
  ["perf/update_hz", "Updates", "updates/s", "learner", "Gradient updates"],
  ["perf/update_frame_hz", "Update frames", "transitions/s", "evaluator", "Updates × batch size"],
];
const ROLES = { learner: "learner", sampler: "sampler", evaluator: "evaluator", visualizer: "visualizer",
  supervisor: "other", dashboard: "ghost", tracker: "ghost" };
const SAID = /^(rollout|eval)\/(success_rate$|info\/)/;
const SAID_COLOURS = { "evaluator-0": "evaluator", "supervisor-0": "sampler", "callbacks-0": "other" };
const AXIS_NAMES = ["time_s", "env_steps", "updates"];
const LEAST_CORES = 0.05; // less is not mentioned
const NOT_LOSSES = ["train/n_updates", "train/batch_size"];
const AFTER_FIRST_UPDATE = "Available after the first update.";

export class Panels {
  constructor() {
    this.charts = {};
    this.drawn = {};
  }

  forget() {
    Object.values(this.charts).forEach((chart) => chart.remove());
    this.charts = {};
    this.drawn = {};
    for (const id of ["rates", "use-bars", "strip", "losses", "said", "tuner", "faults", "config"]) {
      at(id).replaceChildren();
      delete at(id).dataset.key;
    }
  }

  forgetConfig() {
    delete at("config").dataset.key;
  }

  draw(data, about, over) {
    showStrip(data, about, over);
    this.drawRates(data);
    this.drawUse(data, about, over);
    this.drawLag(data);
    this.drawReplay(data, about);
    showTuner(data, over);
    this.drawSaid(data);
    this.drawLosses(data);
    showFaults(data, over);
    showConfig(about);
  }

  chart(name, host, options) {
    return this.charts[name] ??= new Chart(host, options);
  }

  drawRates(data) {
    const table = data.tables["supervisor-0"], summary = data.summary;
    if (!at("rates").children.length) {
      at("rates").append(...RATES.map(([name, title, unit, , what]) => el("div", { class: "panel rate" },
        el("h2", {}, title), el("p", { class: "big" }, el("b", { id: `rate-${name}` }, "–"), " ", el("span", {}, unit)),
        el("div", { class: "spark", id: `spark-${name}` }), el("p", { class: "note" }, what))));
    }
    for (const [name, , , colour] of RATES) {
      const average = summary[name.slice(5)];
      say(`rate-${name}`, short(average ?? last(table, name)));
      this.chart(name, at(`spark-${name}`), { series: [{ label: "", colour, fill: `${colour}-fill`, width: 1.5 }],
        height: 48, legend: false, axes: false, zero: true }).set(columns(table, "time_s", [name]), "No measurements yet.");
    }
  }

  drawUse(data, about, over) {
    const table = data.tables["supervisor-0"], names = (table?.columns ?? []).filter((n) => n.startsWith("perf/cpu_percent/"));
    const cores = about.system?.cores ?? 1, gpu = last(table, "perf/gpu_percent");
    const roles = names.map((name) => [name.slice("perf/cpu_percent/".length), last(table, name) ?? 0]);
    const total = last(table, "perf/cpu_percent"), others = (last(table, "perf/cpu_percent_others") ?? 0) / 100;
    const elsewhere = others >= LEAST_CORES ? `, other programs ${others.toFixed(1)}` : "";
    say("use-note", total === null ? "" : `${(total / 100).toFixed(1)} of ${cores} cores${elsewhere}${over ? " at the end" : ""}`);
    const bars = [...roles.map(([role, use]) => [role, use, cores * 100, ROLES[role] ?? "other", `${Math.round(use)} % of a core`]),
      ...(gpu === null ? [] : [["GPU", gpu, 100, "gpu", percent(gpu)]])];
    fill(at("use-bars"), bars.map(([role, use]) => [role, Math.round(use)]), () => bars.map(([role, use, most, colour, words]) => {
      const inner = el("i", { class: `c-${colour}` });
      inner.style.width = `${Math.min(100, (100 * use) / most)}%`;
      return el("div", { class: "bar" }, el("span", {}, role), el("div", { class: "track" }, inner), el("b", {}, words));
    }));
    const shape = names.join() + (gpu === null);
    if (this.useShape !== shape) {
      this.useShape = shape;
      this.charts.use?.remove();
      delete this.charts.use;
    }
    const wanted = [...names, ...(gpu === null ? [] : ["perf/gpu_percent"])];
    const series = [...roles.map(([role]) => ({ label: role, colour: ROLES[role] ?? "other", format: percent })),
      ...(gpu === null ? [] : [{ label: "GPU", colour: "gpu", format: percent }])];
    this.chart("use", at("use-chart"), { series, height: 130, zero: true, legend: false })
      .set(wanted.length ? columns(table, "time_s", wanted) : null, "No measurements yet.");
  }

  drawLag(data) {
    this.chart("lag", at("lag-chart"), { series: [{ label: "Versions", colour: "lag", fill: "lag-fill", format: (v) => short(v) }], zero: true, height: 190 })
      .set(columns(data.tables["learner-0"], "time_s", ["async/policy_lag"]), AFTER_FIRST_UPDATE);
  }

  drawReplay(data, about) {
    const rows = last(data.tables["learner-0"], "replay/rows"), capacity = about.config?.replay?.capacity;
    const age = last(data.tables["supervisor-0"], "replay/age_s");
    say("replay-note", rows === null ? "" : `${short(rows)} of ${short(capacity)} transitions` +
      (age === null ? "" : `, median age ${clock(age)}`));
    const fillOf = columns(data.tables["learner-0"], "time_s", ["replay/rows"]);
    const ageOf = columns(data.tables["supervisor-0"], "time_s", ["replay/age_s"]);
    const joined = fillOf?.[0].length && ageOf?.[0].length ? uPlot.join([fillOf, ageOf]) : null;
    this.chart("replay", at("replay-chart"), { zero: true, height: 190, series: [
      { label: "Transitions", colour: "learner", fill: "learner-fill", format: (v) => short(v) },
      { label: "Median age", colour: "lag", scale: "right", format: clock, dash: [4, 3] },
    ] }).set(joined, "The buffer fills once the learner is running.");
  }

  drawLosses(data) {
    const table = data.tables["learner-0"];
    const names = (table?.columns ?? []).filter((n) => n.startsWith("train/") && !NOT_LOSSES.includes(n));
    if (!names.length) {
      fill(at("losses"), "none", () => [el("p", { class: "empty" }, AFTER_FIRST_UPDATE)]);
      return;
    }
    this.drawEach("losses", names.map((name) => [table, name, metricName(name), "loss"]));
  }

  // What environments say in `info`, and what callbacks log.
  drawSaid(data) {
    const plots = ["evaluator-0", "supervisor-0", "callbacks-0"].flatMap((role) => {
      const table = data.tables[role];
      return (table?.columns ?? []).filter((n) => SAID.test(n) || (role === "callbacks-0" && !AXIS_NAMES.includes(n)))
        .map((name) => [table, name, saidName(name), SAID_COLOURS[role]]);
    });
    at("said-panel").hidden = !plots.length;
    this.drawEach("said", plots);
  }

  // One small chart for each [table, name, label, colour].
  drawEach(id, plots) {
    const names = plots.map(([, name]) => name);
    fill(at(id), names, () => {
      (this.drawn[id] ?? []).forEach((name) => this.charts[`${id} ${name}`]?.remove());
      this.drawn[id] = names;
      return plots.map(([, name, label, colour]) => {
        const host = el("div", { class: "plot" });
        this.charts[`${id} ${name}`] = new Chart(host, { series: [{ label, title: name, colour, width: 1.5 }], height: 120 });
        return host;
      });
    });
    for (const [table, name] of plots) this.charts[`${id} ${name}`].set(columns(table, "time_s", [name]), AFTER_FIRST_UPDATE);
  }
}

const kept = (note) => note["tuner/kept"] === 1, RESULTS = { 1: "Kept", 0: "Undone" };

function showTuner(data, over) {
  const decisions = data.notes.filter((note) => Object.keys(note).some((key) => key.startsWith("tuner/")));
  say("tuner-note", decisions.length ? `${plural(decisions.length, "change")} tried, ${decisions.filter(kept).length} kept` : "");
  const end = data.summary.wall_s ?? data.status.progress?.time_s ?? 1;
  fill(at("tuner"), [decisions, decisions.length ? Math.round(end / 5) : 0, over], () => {
    if (!decisions.length) {
      return [el("p", { class: "empty" }, over
        ? "No setting was changed during this run."
        : "No changes so far. The initial settings and their reasons are under Configuration.")];
    }
    const line = el("div", { class: "timeline" });
    for (const note of decisions) {
      const dot = el("i", { class: kept(note) ? "kept" : "", title: `${clock(note.time_s)}: ${note["tuner/change"] ?? ""}` });
      dot.style.left = `${Math.min(100, (100 * note.time_s) / end)}%`;
      line.append(dot);
    }
    const rows = decisions.slice(-30).reverse().map((note) => el("tr", {},
      el("td", { class: "num" }, clock(note.time_s)), el("td", {}, asText(note["tuner/change"])),
      el("td", {}, el("span", { class: `pill ${kept(note) ? "kept" : ""}` }, RESULTS[note["tuner/kept"]] ?? "–")),
      el("td", { class: "num" }, gain(note["tuner/gain"])), el("td", { class: "dim" }, asText(note["tuner/seen"]))));
    const titles = ["Time", "Change", "Result", "Learning speed", "Rates before"];
    const head = el("tr", {}, ...titles.map((name) => el("th", {}, name)));
    return [line, el("div", { class: "scroll" }, el("table", { class: "tuner" }, el("thead", {}, head), el("tbody", {}, ...rows)))];
  });
}

const asText = (value) => (value === undefined || value === null ? "" : typeof value === "number" ? short(value) : String(value));
const gain = (value) => (typeof value === "number" ? `${value >= 0 ? "+" : "−"}${Math.round(Math.abs(100 * value))} %` : asText(value));

function showFaults(data, over) {
  const events = data.notes.filter((note) => note.event), open = data.status.open_warnings ?? [];
  fill(at("faults"), [events, open, over], () => {
    if (!events.length && !open.length) return [el("p", { class: "empty good" }, "No faults.")];
    const item = (when, text, kind) => el("li", { class: kind }, el("span", { class: "num dim" }, when), " ", text);
    return [el("ul", { class: "events" }, ...open.map((text) => item(over ? "at the end" : "now", text, "warn")),
      ...events.slice(-50).reverse().map((note) => item(clock(note.time_s), note.event, "past")))];
  });
}

function showConfig(about) {
  const wanted = at("config-filter").value.toLowerCase();
  fill(at("config"), [about.config, wanted], () => {
    const sections = { simulation: "env", hyper: "algo" }, rows = [], rest = [];
    const add = (name, value) => {
      const reason = about.reasons?.[name] ?? "", text = setting(value);
      if (wanted && !`${name} ${text} ${reason}`.toLowerCase().includes(wanted)) return;
      (reason || wanted ? rows : rest).push(el("tr", {}, el("td", {}, el("code", {}, name)), el("td", { class: "value" }, text),
        el("td", { class: "dim" }, reason)));
    };
    for (const [name, value] of Object.entries(about.config ?? {})) {
      if (value && typeof value === "object" && !Array.isArray(value))
        for (const [knob, inner] of Object.entries(value)) add(`${sections[name] ?? name}.${knob}`, inner);
      else add(name, value);
    }
    at("config-rest").hidden = !rest.length;
    at("config-more").replaceChildren(...rest);
    if (!rows.length && !rest.length) return [el("tr", {}, el("td", { class: "empty" }, about.config ? "No matching setting." : "Not available yet."))];
    return rows;
  });
}
