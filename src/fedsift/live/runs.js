/* All runs: the newest first, each with its state and how far it is. */
"use strict";
(function () {
  var $ = function (id) { return document.getElementById(id); }, links = {};

  function part(kind, words) {
    var made = document.createElement(kind === "name" ? "b" : "span");
    made.className = kind; made.textContent = words;
    return made;
  }

  function entry(run) {
    var link = links[run.name] || document.createElement("a"), bar = document.createElement("span"), fill = document.createElement("div"), track = document.createElement("div");
    links[run.name] = link;
    link.href = "runs/" + encodeURIComponent(run.name) + "/";
    link.title = run.why;
    track.className = "progress"; track.append(fill);
    fill.style.width = (run.of ? 100 * run.round / run.of : 0) + "%";
    bar.append(track, part("soft", run.of ? run.round + " of " + run.of + " rounds" : ""));
    link.replaceChildren(part("name", run.name), part("soft", run.method + (run.sites ? " · " + run.sites + " sites" : "")), bar,
      part("soft", run.score), part("state " + run.state, run.state));
    return link;
  }

  var stream = new EventSource("events");
  stream.onmessage = function (event) {
    var all = JSON.parse(event.data), busy = all.filter(function (run) { return run.active; }).length, focus = document.activeElement;
    $("headline").textContent = all.length + (all.length === 1 ? " run" : " runs") + (busy ? ", " + busy + " at work" : "");
    $("runs").replaceChildren.apply($("runs"), all.map(entry));
    $("runs").hidden = !all.length; $("none").hidden = Boolean(all.length);
    $("state").textContent = "up to date"; $("state").className = "state";
    if (focus && focus !== document.activeElement && focus.focus) { focus.focus(); }
  };
  stream.onerror = function () { $("state").textContent = "no connection"; $("state").className = "state offline"; };
})();
