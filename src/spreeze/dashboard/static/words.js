// Formats numbers for people, and builds elements whose text is never parsed as HTML.

export function short(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const scale = { G: 1e9, M: 1e6, k: 1e3 }[unit];
    if (size >= limit) return (value / scale).toFixed(1).replace("-", "−") + " " + unit;
  }
  const text = size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

export function clock(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Math.round(seconds * 10) / 10} s`;
  const whole = Math.floor(seconds), rest = String(whole % 60).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest} h` : `${minutes}:${rest} min`;
}

export const percent = (value) => `${Math.round(value)} %`;

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !name.startsWith("aria")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const at = (id) => document.getElementById(id);

export function say(id, text) {
  const node = at(id);
  if (node.textContent !== text) node.textContent = text;
}

// Replace children only if what they show has changed: no flicker, no lost selection.
export function fill(host, key, build) {
  const text = JSON.stringify(key);
  if (host.dataset.key === text) return;
  host.dataset.key = text;
  host.replaceChildren(...build());
}

// What the learner writes, in words. Metrics of your own algorithm keep their names.
const METRICS = {
  "train/critic_loss": "Loss of the critics", "train/actor_loss": "Loss of the actor", "train/q_mean": "Mean Q-value",
  "train/value_mean": "Mean value target", "train/ent_coef": "Temperature", "train/entropy": "Entropy of the policy",
  "train/edge_mass": "Probability of the outermost atoms", "train/clip_fraction": "Share of clipped actions",
  "train/learning_rate": "Learning rate",
};

export function metricName(name) {
  if (Object.hasOwn(METRICS, name)) return METRICS[name];
  const plain = name.slice(name.indexOf("/") + 1).replaceAll("_", " ");
  return plain.charAt(0).toUpperCase() + plain.slice(1);
}

// What an environment says, in words. Metrics of your own callbacks keep their names.
export function saidName(name) {
  const [, where, what] = /^(eval|rollout)\/(?:info\/)?(.*)$/.exec(name) ?? [];
  return where ? `${where === "eval" ? "Evaluations" : "Sampling"}: ${what.replaceAll("_", " ")}` : name;
}

// The value of a setting.
export const setting = (value) => (Array.isArray(value) ? value : [value]).map((v) => (typeof v === "number" && v >= 1e4 ? v.toLocaleString("en") : String(v ?? "–"))).join(" ");

export const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
