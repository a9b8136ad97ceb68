// Charts: uPlot with the page's colours, and a legend that shows the values under the cursor.
// A series whose `dot` is false is in the legend without one: it belongs to the series before it.
import { clock, el, short } from "/static/words.js";

const all = new Set();

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const AXES = {
  time_s: { format: clock, tick: (v) => clock(v).replace(/ (min|h)$/, "") },
  env_steps: { format: (v) => `${short(v)} env steps`, tick: (v) => short(v) },
  updates: { format: (v) => `${short(v)} updates`, tick: (v) => short(v) },
};

const THEME = matchMedia("(prefers-color-scheme: dark)");
THEME.addEventListener("change", () => all.forEach((c) => c.plot && c.plot.redraw(false)));

export class Chart {
  // series: [{label, colour, format, width, dash, fill, scale, dot}]; data: [xs, ...ys]
  // target: {value, colour, placed}; `placed` is told whether it is below (-1), in (0) or above (1) the scale.
  constructor(host, { series, height = 150, axis = "time_s", legend = true, axes = true, bands, zero = false, target = null }) {
    Object.assign(this, { host, series, height, axis, legend, axes, bands, zero, target });
    this.data = null;
    this.plot = null;
    this.empty = el("p", { class: "empty" });
    this.legendBox = el("div", { class: "legend" });
    this.box = el("div", { class: "canvas" });
    host.replaceChildren(this.legendBox, this.box, this.empty);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    all.add(this);
  }

  // Without points, `message` is shown instead.
  set(data, message, axis = this.axis) {
    const points = data && data[0].length && data.slice(1).some((ys) => ys.some((y) => y !== null && y !== undefined));
    this.empty.textContent = points ? "" : message;
    this.empty.hidden = Boolean(points);
    this.box.hidden = !points;
    this.legendBox.hidden = !points || !this.legend;
    this.data = points ? data : null;
    this.host.dataset.points = points ? data[0].length : 0;
    if (!points) return;
    if (!this.plot || axis !== this.axis || data.length !== this.plot.series.length) {
      this.axis = axis;
      this.rebuild();
    } else {
      this.plot.setData(data);
    }
    this.showLegend();
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.data, this.box);
  }

  options() {
    const text = () => colour("faint"), grid = () => colour("grid");
    const font = "11px system-ui, sans-serif";
    const around = (value) => { const pad = Math.abs(value) * 0.1 || 1; return [value - pad, value + pad]; };
    const scales = { x: { time: false, range: (u, low, high) => (low === null ? [0, 1] : low === high ? around(low) : [low, high]) } };
    const right = this.series.some((s) => s.scale === "right");
    const range = (u, low, high) => {
      if (low === null) return [0, 1];
      const bottom = this.zero ? Math.min(0, low) : low, pad = (high - bottom) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [this.zero && low >= 0 ? 0 : bottom - pad, high + pad];
    };
    scales.y = { range };
    if (right) scales.right = { range };
    const side = (scale, where) => {
      const format = this.series.find((s) => (s.scale ?? "y") === scale)?.format ?? short;
      return { scale, side: where, stroke: text, font, size: 52, gap: 6, space: 34, ticks: { show: false },
        grid: { show: where === 3, stroke: grid, width: 1 }, values: (u, ticks) => ticks.map((v) => format(v)) };
    };
    const axes = this.axes
      ? [{ stroke: text, font, size: 28, gap: 6, space: 70, grid: { show: false }, ticks: { show: false },
          values: (u, ticks) => ticks.map(AXES[this.axis].tick) }, side("y", 3), ...(right ? [side("right", 1)] : [])]
      : [{ show: false }, { show: false }];
    return {
      width: this.box.clientWidth || this.host.clientWidth || 300, height: this.height, scales, axes, bands: this.bands,
      padding: this.axes ? [8, right ? 0 : 20, 0, 0] : [4, 2, 4, 2],
      legend: { show: false },
      cursor: { show: this.axes, y: false, points: { size: 7 }, drag: { x: this.axes, y: false } },
      series: [{}, ...this.series.map((s) => ({
        label: s.label, scale: s.scale ?? "y", stroke: () => colour(s.colour), width: s.width ?? 1.75, dash: s.dash,
        fill: s.fill ? () => colour(s.fill) : undefined, points: { show: true, size: 9, fill: () => colour(s.colour), filter: alone }, spanGaps: true,
      }))],
      hooks: { setCursor: [() => this.showLegend()], draw: [(u) => this.drawTarget(u)] },
    };
  }

  // A target outside the scale is drawn at the edge, with an arrow.
  drawTarget(u) {
    if (!Number.isFinite(this.target?.value)) return;
    const { value, colour: name, placed } = this.target, { min, max } = u.scales.y, { left, top, width, height } = u.bbox;
    const beyond = value > max ? 1 : value < min ? -1 : 0, ratio = devicePixelRatio;
    const y = beyond ? (beyond > 0 ? top + ratio : top + height - ratio) : Math.round(u.valToPos(value, "y", true));
    u.ctx.save();
    u.ctx.strokeStyle = u.ctx.fillStyle = colour(name);
    u.ctx.setLineDash([5 * ratio, 5 * ratio]);
    u.ctx.lineWidth = ratio;
    u.ctx.beginPath();
    u.ctx.moveTo(left, y);
    u.ctx.lineTo(left + width, y);
    u.ctx.stroke();
    if (beyond) {
      const x = left + width - 8 * ratio, size = 6 * ratio;
      u.ctx.beginPath();
      u.ctx.moveTo(x, y);
      u.ctx.lineTo(x - size, y + beyond * 1.5 * size);
      u.ctx.lineTo(x + size, y + beyond * 1.5 * size);
      u.ctx.fill();
    }
    u.ctx.restore();
    placed(beyond);
  }

  showLegend() {
    if (!this.legend || !this.plot || !this.data) return;
    const hover = this.plot.cursor.idx;
    const items = this.series.flatMap((s, i) => {
      if (s.legend === false) return [];
      const ys = this.data[i + 1];
      const index = hover ?? lastNumber(ys);
      const value = near(ys, index);
      return [el("span", { class: "key", title: s.title ?? "" }, s.dot === false ? null : el("i", { class: `dot c-${s.colour}` }), `${s.label} `,
        el("b", {}, value === null ? "–" : (s.format ?? short)(value)))];
    });
    const x = hover === null || hover === undefined ? null : this.data[0][hover];
    if (x !== null) items.unshift(el("span", { class: "key at" }, AXES[this.axis].format(x)));
    this.legendBox.replaceChildren(...items);
  }

  resize() {
    if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: this.height });
  }

  remove() {
    this.observer.disconnect();
    this.plot?.destroy();
    all.delete(this);
  }
}

// A line needs two points, so a single one gets a dot.
function alone(u, index) {
  const found = u.data[index].flatMap((y, i) => (y === null || y === undefined ? [] : [i]));
  return found.length === 1 && u.series[index].width > 0 ? found : [];
}

function lastNumber(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return i;
  return -1;
}

// Joined series have gaps, so take the nearest value on the left.
function near(values, index) {
  for (let i = index; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

// Columns of one table in the form that uPlot takes.
export function columns(table, axis, names) {
  if (!table) return null;
  const x = table.columns.indexOf(axis), wanted = names.map((name) => table.columns.indexOf(name));
  const rows = table.rows.filter((row) => row[x] !== null && row[x] !== undefined);
  return [rows.map((row) => row[x]), ...wanted.map((i) => rows.map((row) => (i < 0 ? null : row[i] ?? null)))];
}

export function last(table, name) {
  if (!table) return null;
  const i = table.columns.indexOf(name);
  for (let r = table.rows.length - 1; i >= 0 && r >= 0; r--) {
    const value = table.rows[r][i];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}
