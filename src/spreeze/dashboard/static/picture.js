// The live picture of the policy, and its videos.
import { at, el, fill, say, short } from "/static/words.js";

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
  say("picture-note", frame && view.updates !== undefined ? about(view, over) : "");
  say("h-picture", over ? "Last picture of the policy" : "Live policy");
  showVideos(id, videos, data);
}

function about(view, over) {
  const reached = short(view.return, 4), after = `after ${short(view.updates)} updates`;
  if (over) return `Return ${reached} up to this picture · ${after}`;
  return `${view.filming ? `Filming the ${view.filming} · return` : "Return"} so far ${reached} · ${after}`;
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
  return match ? `Best at ${short(Number(match[1]))} updates` : name === "first.mp4" ? "First policy" : name === "last.mp4" ? "Last policy" : name;
}
