// The list of runs: sort, filter, tick. Every run that is shown has one colour, the same everywhere.
import { at, clock, el, fill, say, setting, short } from "/static/words.js";

const value = (v) => short(v, 4);
export const COLUMNS = [
  ["name", "Run"], ["state", "State"], ["best_return", "Best return", value], ["final_return", "Last return", value],
  ["env", "Task"], ["algo", "Algorithm"], ["seed", "Seed", String], ["differs", "Settings that differ"],
  ["env_steps", "Env steps", short], ["wall_s", "Time", clock], ["sample_hz", "Steps/s", short],
  ["update_hz", "Updates/s", short], ["began", "Started", when],
];
const UNSORTED = ["differs"], ASCENDING = ["name", "env", "algo", "state", "seed"];
const COLOURS = ["run-1", "run-2", "run-3", "run-4", "run-5", "run-6", "run-7", "run-8", "run-9"];
const MAX_TICKED = COLOURS.length - 1; // one is left for a run that is open and not ticked

function when(seconds) {
  if (!seconds) return "–";
  const date = new Date(1000 * seconds), today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

const known = (v) => v !== null && v !== undefined;

export class RunList {
  constructor(changed) {
    Object.assign(this, { changed, rows: [], folder: "runs", sweep: null, loaded: false, current: null, ticked: new Set(),
      colours: new Map(), curves: new Map(), stamps: new Map(), sort: "began", down: true });
    at("runs-filter").addEventListener("input", () => this.draw());
    this.all = el("input", { type: "checkbox", "aria-label": "Compare all in this list", onchange: () => this.tickAll() });
    at("runs-head").append(el("tr", {}, el("th", { class: "tick" }, this.all), ...COLUMNS.map(([key, title]) =>
      el("th", { "data-key": key, class: key, scope: "col" },
        UNSORTED.includes(key) ? title : el("button", { type: "button", onclick: () => this.sortBy(key) }, title)))));
  }

  set(found) {
    this.rows = found.runs;
    this.folder = found.folder;
    this.sweep = found.sweep;
    this.loaded = true;
    for (const id of this.ticked) if (!this.row(id)) this.ticked.delete(id);
  }

  row(id) {
    return this.rows.find((row) => row.id === id);
  }

  // The colour of a run that is shown; empty for any other.
  colour(id) {
    const shown = this.shown();
    if (!shown.includes(id)) return "";
    if (!this.colours.has(id)) {
      const used = [...this.colours.values()];
      let free = COLOURS.find((name) => !used.includes(name));
      if (!free) { // take that of a run that is no longer shown
        const [other] = [...this.colours.keys()].filter((key) => !shown.includes(key));
        free = this.colours.get(other);
        this.colours.delete(other);
      }
      this.colours.set(id, free);
    }
    return this.colours.get(id);
  }

  // The open run and the ticked ones, each once.
  shown() {
    return [...new Set([this.current, ...this.ticked])].filter((id) => id !== null);
  }

  // The ticked runs of each task, in the order of the list; with an open run, of its task only.
  tasks() {
    const tasks = new Map();
    for (const row of this.rows) {
      if (!this.ticked.has(row.id) || row.id === this.current) continue;
      if (!tasks.has(row.env)) tasks.set(row.env, []);
      tasks.get(row.env).push(row);
    }
    return tasks;
  }

  // What a chart needs of a run: its evaluations as positions and means.
  line(row, position) {
    const points = (this.curves.get(row.id) ?? []).filter((p) => known(p[position]));
    return { id: row.id, name: row.name, colour: this.colour(row.id), data: [points.map((p) => p[position]), points.map((p) => p[3])] };
  }

  sortBy(key) {
    this.down = this.sort === key ? !this.down : !ASCENDING.includes(key);
    this.sort = key;
    this.draw();
  }

  async loadCurves(ask) {
    for (const row of this.rows.filter((row) => this.ticked.has(row.id))) {
      const stamp = `${row.state} ${row.state === "running" ? row.env_steps : ""}`;
      if (this.stamps.get(row.id) === stamp) continue;
      this.stamps.set(row.id, stamp);
      try {
        this.curves.set(row.id, (await ask(`/api/runs/${row.id}/curve`)).curve);
      } catch {
        this.stamps.delete(row.id);
      }
    }
  }

  visible() {
    const words = at("runs-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.name, row.env, row.algo, row.state, row.reason, differences(row)].join(" ").toLowerCase();
    const rows = this.rows.filter((row) => words.every((word) => text(row).includes(word)));
    const sign = this.down ? -1 : 1;
    return rows.sort((a, b) => {
      const [x, y] = [a[this.sort], b[this.sort]];
      if (x === y) return 0;
      if (!known(x)) return 1;
      if (!known(y)) return -1;
      return (x < y ? -1 : 1) * sign;
    });
  }

  draw() {
    const rows = this.visible();
    for (const th of at("runs-head").querySelectorAll("th[data-key]"))
      th.setAttribute("aria-sort", th.dataset.key !== this.sort ? "none" : this.down ? "descending" : "ascending");
    say("runs-number", this.loaded ? String(this.rows.length) : "");
    say("runs-note", rows.length === this.rows.length ? `${rows.length} in ${this.folder}` : `${rows.length} of ${this.rows.length}`);
    at("runs-empty").hidden = rows.length > 0 || !this.loaded;
    say("runs-empty", this.rows.length ? "No matching runs." : "No runs in this folder yet. Start one: spreeze train Pendulum-v1");
    const ticked = rows.filter((row) => this.ticked.has(row.id)).length;
    this.all.checked = ticked > 0 && (ticked === rows.length || this.ticked.size >= MAX_TICKED);
    fill(at("runs-body"), [rows, this.current, [...this.ticked]], () => rows.map((row) => this.item(row)));
  }

  item(row) {
    const differ = differences(row), checked = this.ticked.has(row.id), full = this.ticked.size >= MAX_TICKED && !checked;
    const box = el("input", { type: "checkbox", checked, disabled: full, "aria-label": `Compare ${row.name}`,
      title: full ? `Up to ${MAX_TICKED} runs can be compared.` : "", onchange: () => this.tick(row.id) });
    const cells = COLUMNS.map(([key, , format]) => {
      if (key === "name") return el("td", { class: key }, el("i", { class: `dot c-${this.colour(row.id) || "none"}` }),
        el("a", { href: `#/${row.id}` }, row.name));
      if (key === "state") return el("td", { class: key }, el("span", { class: `pill ${row.state}` }, row.state));
      if (key === "differs") return el("td", { class: `${key} dim` }, differ ? el("span", { title: differ }, differ) : null);
      return el("td", { class: `${key} ${format ? "num" : ""}` }, known(row[key]) && format ? format(row[key]) : `${row[key] ?? "–"}`);
    });
    return el("tr", { class: row.id === this.current ? "current" : "" }, el("td", { class: "tick" }, box), ...cells);
  }

  tick(id) {
    if (this.ticked.has(id)) this.ticked.delete(id);
    else if (this.ticked.size < MAX_TICKED) this.ticked.add(id);
    this.changed();
  }

  tickAll() {
    const rows = this.visible();
    const tick = this.all.checked;
    for (const row of rows) {
      if (!tick) this.ticked.delete(row.id);
      else if (this.ticked.size < MAX_TICKED) this.ticked.add(row.id);
    }
    this.changed();
  }
}

const differences = (row) => Object.entries(row.differs ?? {}).map(([knob, v]) => `${knob} ${setting(v)}`).join(", ");
