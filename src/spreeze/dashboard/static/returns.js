// The evaluation return of runs of one task, each in its colour.
import { el, short } from "/static/words.js";
import { Chart, colour } from "/static/charts.js";

const format = (value) => short(value, 4);
const BEYOND = { "-1": " (below this scale)", 0: "", 1: " (above this scale)" };

export class ReturnChart {
  constructor(host) {
    this.host = host;
    this.chart = null;
    this.shape = "";
  }

  forget() {
    this.shape = "";
  }

  // runs: [{id, name, colour, data}]; data: [positions, means], for one of them also the worst and the best episodes.
  draw(runs, axis, message, target = null) {
    const shape = JSON.stringify([runs.map((run) => [run.id, run.name, run.colour, run.data.length]), target]);
    if (this.shape !== shape) {
      this.shape = shape;
      this.build(runs, target);
    }
    const tables = runs.map((run) => sorted(run.data));
    const present = tables.filter((table) => table[0].length);
    const joined = present.length ? uPlot.join(present) : [[]];
    // Tables without points are not joined. Their columns stay empty.
    const out = [joined[0]];
    let column = 1;
    for (const table of tables)
      for (let k = 1; k < table.length; k++) out.push(table[0].length ? joined[column++] : joined[0].map(() => null));
    this.chart.set(present.length ? out : null, message, axis);
  }

  build(runs, target) {
    this.chart?.remove();
    const series = [], bands = [];
    for (const run of runs) {
      series.push({ label: run.name, colour: run.colour, width: 2, format });
      if (run.data.length < 4) continue;
      series.push({ label: "worst episode", colour: run.colour, width: 0, format, dot: false },
        { label: "best episode", colour: run.colour, width: 0, format, dot: false });
      bands.push({ series: [series.length, series.length - 1], fill: () => `${colour(run.colour)}22` });
    }
    const place = el("span", {});
    this.chart = new Chart(this.host, { height: innerWidth < 700 ? 220 : 330, series, bands,
      target: { value: target, colour: "faint", placed: (beyond) => { place.textContent = BEYOND[beyond]; } } });
    if (target !== null) this.host.append(el("div", { class: "legend foot" }, el("span", { class: "key" },
      el("i", { class: "dash" }), "Target ", el("b", {}, format(target)), place)));
  }

  remove() {
    this.chart?.remove();
  }
}

// A resumed run continues the counts of another, but uPlot needs ascending positions.
function sorted(table) {
  const [xs, ...rest] = table;
  if (xs.every((x, i) => i === 0 || xs[i - 1] <= x)) return table;
  const order = xs.map((_, i) => i).sort((a, b) => xs[a] - xs[b]);
  return [order.map((i) => xs[i]), ...rest.map((ys) => order.map((i) => ys[i]))];
}
