// The table of runs: sort, filter, compare.
import { at, clock, el, fill, say, short } from "/static/words.js";

const COLUMNS = [
  ["name", "Run"], ["state", "State"], ["best_return", "Best return", (v) => short(v, 4)],
  ["final_return", "Last return", (v) => short(v, 4)], ["env", "Task"], ["algo", "Algorithm"],
  ["env_steps", "Env steps", short], ["wall_s", "Time", clock],
  ["sample_hz", "Steps/s", short], ["update_hz", "Updates/s", short], ["began", "Started", when],
];
const MAX_CURVES = 24, MAX_COMPARED = 6;

function when(seconds) {
  if (!seconds) return "–";
  const date = new Date(1000 * seconds), today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

export class RunList {
  constructor(changed) {
    Object.assign(this, { changed, rows: [], folder: "runs", current: null, checked: new Set(), curves: new Map(),
      stamps: new Map(), abouts: new Map(), sort: "began", down: true });
    at("runs-filter").addEventListener("input", () => this.draw());
    at("runs-head").append(el("tr", {}, el("th", { title: "Compare" }, ""), ...COLUMNS.map(([key, title]) =>
      el("th", { "data-key": key, scope: "col" }, el("button", { type: "button", onclick: () => this.sortBy(key) }, title)))));
  }

  set(found) {
    this.rows = found.runs;
    this.folder = found.folder;
  }

  row(id) {
    return this.rows.find((row) => row.id === id);
  }

  sortBy(key) {
    this.down = this.sort === key ? !this.down : !["name", "env", "algo", "state"].includes(key);
    this.sort = key;
    this.draw();
  }

  async loadCurves(ask, current) {
    const env = this.row(current)?.env;
    const wanted = this.rows.filter((row) => row.id !== current && (row.env === env || this.checked.has(row.id))).slice(0, MAX_CURVES);
    for (const row of wanted) {
      const stamp = `${row.state} ${row.state === "running" ? row.env_steps : ""}`;
      if (this.stamps.get(row.id) === stamp) continue;
      this.stamps.set(row.id, stamp);
      try {
        this.curves.set(row.id, (await ask(`/api/runs/${row.id}/curve`)).curve);
      } catch {
        this.stamps.delete(row.id);
      }
    }
    for (const id of [...this.checked, current]) {
      if (!id || this.abouts.has(id)) continue;
      try {
        this.abouts.set(id, await ask(`/api/runs/${id}`));
      } catch {
        this.checked.delete(id);
      }
    }
    this.ask = ask;
  }

  visible() {
    const words = at("runs-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.name, row.env, row.algo, row.state, row.reason].join(" ").toLowerCase();
    const rows = this.rows.filter((row) => words.every((word) => text(row).includes(word)));
    const sign = this.down ? -1 : 1;
    return rows.sort((a, b) => {
      const [x, y] = [a[this.sort], b[this.sort]];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * sign;
    });
  }

  draw() {
    const rows = this.visible();
    for (const th of at("runs-head").querySelectorAll("th[data-key]"))
      th.setAttribute("aria-sort", th.dataset.key !== this.sort ? "none" : this.down ? "descending" : "ascending");
    say("runs-note", rows.length === this.rows.length ? `${rows.length} in ${this.folder}` : `${rows.length} of ${this.rows.length}`);
    at("runs-empty").hidden = rows.length > 0;
    say("runs-empty", this.rows.length ? "No matching runs." : "No runs in this folder yet. Start one: spreeze train Pendulum-v1");
    fill(at("runs-body"), [rows, this.current, [...this.checked]], () => rows.map((row) => this.line(row)));
    this.compare();
  }

  line(row) {
    const box = el("input", { type: "checkbox", checked: this.checked.has(row.id), "aria-label": `Compare ${row.name}`, onchange: () => this.check(row.id) });
    const cells = COLUMNS.map(([key, , format]) => {
      if (key === "name") return el("td", {}, el("a", { href: `#/${row.id}` }, row.name));
      if (key === "state") return el("td", {}, el("span", { class: `pill ${row.state}` }, row.state));
      return el("td", { class: format ? "num" : "" }, format ? format(row[key]) : `${row[key] ?? "–"}`);
    });
    return el("tr", { class: row.id === this.current ? "current" : "" }, el("td", {}, box), ...cells);
  }

  async check(id) {
    if (this.checked.has(id)) this.checked.delete(id);
    else if (this.checked.size < MAX_COMPARED) this.checked.add(id);
    this.draw();
    if (this.ask) await this.loadCurves(this.ask, this.current);
    this.changed();
  }

  compare() {
    const ids = [...new Set([this.current, ...this.checked])].filter((id) => id && this.row(id) && this.abouts.has(id));
    const shown = this.checked.size && ids.length > 1 ? ids : [];
    fill(at("comparison"), [shown, shown.map((id) => this.row(id))], () => {
      if (!shown.length) return [];
      const rows = COLUMNS.filter(([key, , format]) => format && key !== "began").map(([key, title, format]) => [title, ...shown.map((id) => format(this.row(id)[key]))]);
      const knobs = shown.map((id) => flat(this.abouts.get(id).config ?? {}));
      const differ = [...new Set(knobs.flatMap((k) => Object.keys(k)))].filter((name) => name !== "name" && new Set(knobs.map((k) => k[name])).size > 1);
      const line = (kind) => ([title, ...values]) => el("tr", {}, el("td", { class: "dim" }, kind === "knob" ? el("code", {}, title) : title),
        ...values.map((value) => el("td", { class: "num" }, value)));
      const colours = ["return", "c1", "c2", "c3", "c4", "c5", "c6"];
      const offset = shown[0] === this.current ? 0 : 1;
      const head = el("tr", {}, el("th", {}, ""), ...shown.map((id, i) => el("th", {}, el("i", { class: `dot c-${colours[i + offset]}` }), this.row(id).name)));
      return [el("h3", { class: "sub" }, "Comparison"), el("div", { class: "scroll" }, el("table", { class: "list compare" }, el("thead", {}, head),
        el("tbody", {}, ...rows.map(line("")), ...differ.map((name) => line("knob")([name, ...knobs.map((k) => k[name] ?? "–")])))))];
    });
  }
}

function flat(config) {
  const out = {};
  for (const [name, value] of Object.entries(config)) {
    if (value && typeof value === "object" && !Array.isArray(value))
      for (const [knob, inner] of Object.entries(value)) out[`${name === "hyper" ? "algo" : name}.${knob}`] = String(inner);
    else out[name] = String(value);
  }
  return out;
}
