// Comparisons: a table for runs of one task, and on the folder's page a chart and a table for each task.
import { at, el, fill, plural, setting } from "/static/words.js";
import { AXES } from "/static/charts.js";
import { ReturnChart } from "/static/returns.js";
import { COLUMNS } from "/static/runs.js";

const RESULTS = ["state", "algo", "seed", "best_return", "final_return", "env_steps", "wall_s", "sample_hz", "update_hz"];
export const position = (axis) => Object.keys(AXES).indexOf(axis);

// One column per run: its results, then the settings that are not the same in all of them.
export function comparison(list, rows) {
  const cell = (row, [key, , format]) => (format && row[key] !== null && row[key] !== undefined ? format(row[key]) : `${row[key] ?? "–"}`);
  const results = COLUMNS.filter(([key]) => RESULTS.includes(key)).map((column) => [column[1], rows.map((row) => cell(row, column))]);
  const knobs = [...new Set(rows.flatMap((row) => Object.keys(row.differs)))].map((knob) => [knob, rows.map((row) => row.differs[knob])]);
  const differ = knobs.filter(([, values]) => new Set(values.filter((v) => v !== undefined).map((v) => JSON.stringify(v))).size > 1);
  const line = (title, values) => el("tr", {}, el("th", { scope: "row" }, title), ...values.map((text) => el("td", { class: "num" }, text)));
  const head = el("tr", {}, el("td", {}), ...rows.map((row) => el("th", { scope: "col" }, el("i", { class: `dot c-${list.colour(row.id)}` }),
    el("a", { href: `#/${row.id}` }, row.name))));
  return el("div", { class: "scroll" }, el("table", { class: "compare" }, el("thead", {}, head), el("tbody", {},
    ...results.map(([title, values]) => line(title, values)),
    ...differ.map(([knob, values]) => line(el("code", {}, knob), values.map((v) => (v === undefined ? "–" : setting(v))))))));
}

export class TaskPanels {
  constructor(list) {
    this.list = list;
    this.panels = new Map();
  }

  draw(axis) {
    const tasks = this.list.tasks();
    at("tasks-empty").hidden = tasks.size > 0 || !this.list.rows.length;
    at("tasks-axis").hidden = tasks.size === 0;
    for (const [env, panel] of this.panels) if (!tasks.has(env)) this.remove(env, panel);
    for (const [env, rows] of tasks) {
      if (!this.panels.has(env)) this.panels.set(env, this.add(env));
      const { chart, note, table } = this.panels.get(env);
      note.textContent = plural(rows.length, "run");
      const unread = rows.some((row) => !this.list.curves.has(row.id));
      chart.draw(rows.map((row) => this.list.line(row, position(axis))), axis, unread ? "Loading." : "No evaluation yet.");
      fill(table, rows.map((row) => [row, this.list.colour(row.id)]), () => (rows.length > 1 ? [comparison(this.list, rows)] : []));
    }
  }

  add(env) {
    const host = el("div", { class: "plot" }), note = el("span", { class: "note" }), table = el("div", {});
    const panel = el("section", { class: "panel task", "aria-label": env ?? "" }, el("div", { class: "head" }, el("h2", {}, env ?? "Unknown task"), note), host, table);
    at("tasks").append(panel);
    return { panel, note, table, chart: new ReturnChart(host) };
  }

  remove(env, { panel, chart }) {
    chart.remove();
    panel.remove();
    this.panels.delete(env);
  }
}
