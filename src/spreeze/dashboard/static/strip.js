// The pipeline: each role with its rate and the share of its time that it waits; the one that limits the run is marked.
import { at, clock, el, fill, percent, say, short } from "/static/words.js";
import { last } from "/static/charts.js";

// The stages to mark for each `bottleneck_kind` of status.json; before the first update there are none.
const LIMITING = { samplers: ["samplers"], learner: ["learner"], nobody_waits: ["learner", "samplers"] };

export function showStrip(data, about, over) {
  const progress = data.status.progress ?? {}, limit = progress.bottleneck;
  const limits = Object.hasOwn(LIMITING, progress.bottleneck_kind) ? LIMITING[progress.bottleneck_kind] : [];
  say("limit", limit ? `${over ? "was limited by" : "limited by"}: ${limit}` : "");
  const stages = stagesOf(data, about);
  fill(at("strip"), [stages, limits, over], () => stages.map((stage) => {
    const limiting = limits.includes(stage.id);
    const meter = stage.wait === null || stage.wait === undefined ? null : waits(stage);
    return el("li", { class: `stage ${limiting ? "limits" : ""} ${over ? "still" : ""}`, "data-role": stage.id },
      el("h3", {}, el("i", { class: `dot c-${stage.colour}` }), stage.title,
        limiting ? el("span", { class: "tag" }, limits.length > 1 ? (over ? "was busy" : "busy") : over ? "limited the run" : "limits the run") : null),
      el("p", { class: "rate" }, el("b", {}, stage.rate), " ", stage.unit),
      el("p", { class: "more" }, stage.more), meter);
  }));
}

function waits(stage) {
  const inner = el("i", {});
  inner.style.width = `${Math.min(100, Math.round(stage.wait))}%`;
  return el("div", { class: "waits" }, el("div", { class: "track" }, inner), el("span", {}, `${stage.waiting} ${percent(stage.wait)}`));
}

function stagesOf(data, about) {
  const supervisor = data.tables["supervisor-0"], learner = data.tables["learner-0"], evaluator = data.tables["evaluator-0"];
  const config = about.config ?? {}, rate = (name) => short(last(supervisor, name));
  const stall = (role) => last(supervisor, `async/stall_percent/${role}`);
  const rows = last(learner, "replay/rows"), age = last(supervisor, "replay/age_s"), capacity = config.replay?.capacity;
  const evaluations = evaluator?.rows.length ?? 0, lag = last(learner, "async/policy_lag");
  const stages = [
    { id: "samplers", title: "Samplers", colour: "sampler", rate: rate("perf/sample_hz"), unit: "steps/s",
      more: `${config.sampler?.processes ?? "–"} × ${config.sampler?.envs_per_process ?? "–"} environments`,
      wait: round(stall("samplers")), waiting: "wait" },
    { id: "replay", title: "Replay", colour: "replay", rate: rows === null ? "–" : percent((100 * rows) / capacity), unit: "full",
      more: age === null ? "empty" : `median age ${clock(age)}` },
    { id: "learner", title: "Learner", colour: "learner", rate: rate("perf/update_hz"), unit: "updates/s",
      more: `batches of ${short(last(learner, "train/batch_size") ?? config.learner?.batch_size)} on ${config.device ?? "–"}`,
      wait: round(stall("learner")), waiting: "waits" },
    { id: "weights", title: "Weights", colour: "lag", rate: short(lag), unit: "versions", more: "behind the newest when samplers act" },
    { id: "evaluator", title: "Evaluator", colour: "evaluator", rate: String(evaluations), unit: evaluations === 1 ? "evaluation" : "evaluations",
      more: `${config.evaluator?.episodes ?? "–"} episodes each`, wait: round(stall("evaluator")), waiting: "rests" },
  ];
  if (config.visualizer?.draw === "on" && !data.view.problem)
    stages.push({ id: "visualizer", title: "Visualizer", colour: "visualizer", rate: rate("perf/frames_hz"), unit: "pictures/s",
      more: `${data.videos.length} ${data.videos.length === 1 ? "video" : "videos"}`, wait: round(stall("visualizer")), waiting: "rests" });
  return stages;
}

const round = (value) => (value === null ? null : Math.round(value));
