/** @file The page: requests the model and the runs, and shows their views. */

import { alarm, announce, byId } from "./dom.js";
import { Api, Refusal } from "./api.js";
import { AttentionView } from "./attention_view.js";
import { showModel } from "./model.js";
import { Runs } from "./runs.js";
import { askToken } from "./token.js";

const VIEWS = ["picture", "model", "runs"];

/** Returns a reply, or null after 404. */
async function ask(api, path) {
  try {
    return await api.json(path);
  } catch (error) {
    if (error instanceof Refusal && /** @type {any} */ (error).status === 404) return null;
    throw error;
  }
}

/** Shows the view named in the URL, or the first of the available ones. */
function route(there) {
  const asked = location.hash.replace(/^#\/?/, "");
  if (asked === "main" && VIEWS.some((name) => !byId(name).hidden)) return; // the skip link: stay in the current view
  const shown = there.includes(asked) ? asked : there[0];
  for (const name of VIEWS) {
    byId(name).hidden = name !== shown;
    const link = byId(`to-${name}`);
    link.hidden = !there.includes(name);
    if (name === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function start() {
  const api = new Api(askToken, (seconds) => announce(`The server is busy; trying again in ${seconds} s.`));
  const [model, runs] = [await ask(api, "v1/model"), await ask(api, "v1/runs")];
  const there = VIEWS.filter((name) => (name === "runs" ? runs : model));
  if (model) {
    byId("eyebrow").textContent = `vitrail serve · version ${model.version}`;
    byId("title").textContent = model.name;
    document.title = `${model.name} · vitrail`;
    new AttentionView(api, model);
    showModel(model);
  }
  if (runs) new Runs(api).start(runs.runs);
  if (!there.length) {
    throw new Refusal(404, "not_found", "the server has neither a model nor runs", "start it with a model or with --runs");
  }
  route(there);
  addEventListener("hashchange", () => route(there));
  announce("");
}

start().catch((error) => byId("trouble").replaceChildren(alarm(error)));
