/* A run's page: takes the stream's messages and shows them; all reasoning is the server's. */
(function () {
  var $ = function (id) { return document.getElementById(id); };
  var NOW = ["", "answered", "working", "absent", "set aside", "late"], SIGNS = ["", "✓ ", "… ", "∅ ", "✕ ", "! "];
  var PLOTS = [["accuracy", "Accuracy"], ["bacc", "BACC"], ["auc", "AUC"], ["map", "mAP"], ["mean_site_accuracy", "Accuracy at the sites, mean"]];
  var MOST_ROUNDS = 100000; // in lanes; no run of ours has so many, but a foreign file may say so
  var LOSSES = { train_loss: "training", loss: "evaluation" };
  var run = { sites: [], stages: [], curves: {}, of: 0 }, codes = null, rows = [], plots = {}, palette = Draw.colours();
  var dirty = { from: Infinity, to: -1, curves: false }, asked = false, finished = false, width = 300;
  window.fedsiftUpdates = [];

  function text(element, words) { if (element.textContent !== words) { element.textContent = words; } }

  function take(news) {
    if (news.whole) { begin(news); }
    ["round", "of", "stage", "ask", "now", "totals", "left", "spent", "own", "state", "why", "active", "resumable", "deployed",
      "headline", "at"].forEach(function (key) { run[key] = news[key]; });
    if (news.findings !== undefined) { run.findings = news.findings; }
    news.columns.forEach(function (column) { fill(column[0], column[1]); });
    Object.keys(news.curves).forEach(function (name) {
      var points = news.curves[name].filter(function (point) { return point[1] !== null; });
      run.curves[name] = news.whole ? points : (run.curves[name] || []).concat(points);
      dirty.curves = true;
    });
    news.about.forEach(about);
    news.took.forEach(function (group) {
      var words = Draw.duration(group[0]);
      if (group[1] === null) { rows.forEach(function (row) { text(row.cells[3], words); }); }
      else { group[1].forEach(function (i) { text(rows[i].cells[3], words); }); }
    });
    news.log.forEach(function (line) { log(line); });
  }

  function begin(news) {
    run = { sites: news.sites, stages: news.stages, curves: {}, method: news.method, engine: news.engine, of: news.of };
    codes = new Uint8Array(news.sites.length * (Math.min(news.of, MOST_ROUNDS) + 1));
    eyes.disconnect();
    rows = news.sites.map(lane);
    $("lanes").replaceChildren.apply($("lanes"), rows.map(function (row) { return row.line; }));
    rows.forEach(function (row) { eyes.observe(row.canvas); });
    $("lines").replaceChildren();
    plots = {};
    $("plots").replaceChildren();
    stages();
    dirty.from = 0; dirty.to = news.of;
  }

  function fill(round, figures) {
    var count = run.sites.length;
    if (round < 0 || round > Math.min(run.of, MOST_ROUNDS)) { return; }
    for (var i = 0; i < count; i += 1) { codes[round * count + i] = figures.charCodeAt(i) - 48; }
    dirty.from = Math.min(dirty.from, Math.max(0, round - 1)); dirty.to = Math.max(dirty.to, Math.max(0, round - 1));
  }

  function lane(name, i) {
    var line = document.createElement("tr"), cells = [];
    while (cells.length < 5) { cells.push(line.insertCell()); }
    cells[0].textContent = name; cells[0].title = name;
    var canvas = document.createElement("canvas");
    canvas.dataset.row = i;
    cells[2].append(canvas);
    return { line: line, cells: cells, canvas: canvas, now: -1, trouble: 0, noisy: false, seen: false, from: 0, to: run.of };
  }

  function about(entry) {
    var row = rows[entry[0]];
    if (!row) { return; }
    row.trouble = entry[1];
    row.cells[4].replaceChildren();
    if (entry[1]) {
      var count = document.createElement("b");
      count.textContent = entry[1] + "× ";
      row.cells[4].title = entry[2];
      row.cells[4].append(count, entry[2]);
    }
  }

  function stages() {
    $("stages").replaceChildren.apply($("stages"), run.stages.map(function (stage) {
      var item = document.createElement("li"), bar = document.createElement("i"), name = document.createElement("span");
      bar.append(document.createElement("b"));
      name.textContent = stage.name; name.title = stage.name + ", " + stage.rounds + (stage.rounds === 1 ? " round" : " rounds");
      item.style.flexGrow = Math.max(stage.rounds, run.of / 12);
      item.append(bar, name);
      return item;
    }));
  }

  function showStages() {
    var before = 0, current = run.ask ? run.ask.round : Math.min(run.round + 1, run.of);
    Array.from($("stages").children).forEach(function (item, i) {
      var rounds = run.stages[i].rounds, done = Math.max(0, Math.min(rounds, run.round - before));
      item.querySelector("b").style.width = (rounds ? 100 * done / rounds : 0) + "%";
      var here = run.active && current > before && current <= before + rounds;
      item.className = rounds && done === rounds ? "done" : "";
      if (here && done < rounds) { item.setAttribute("aria-current", "step"); item.dataset.now = done + " of " + rounds; }
      else { item.removeAttribute("aria-current"); }
      before += rounds;
    });
  }

  function show() {
    lanes();
    text($("headline"), run.headline + ".");
    document.title = (run.of ? run.round + "/" + run.of + " · " : "") + run.headline + " · fedsift";
    text($("where"), [run.method, run.sites.length ? run.sites.length + (run.sites.length === 1 ? " site" : " sites") : "",
      run.engine].filter(Boolean).join(" · "));
    text($("state"), run.state); $("state").className = "state " + run.state;
    text($("sub"), sub());
    $("fill").style.width = (run.of ? 100 * run.round / run.of : 0) + "%";
    $("progress").setAttribute("aria-valuemax", run.of); $("progress").setAttribute("aria-valuenow", run.round);
    $("stop").hidden = !run.active || run.state === "stopping";
    $("resume").hidden = !run.resumable;
    if (asked && asked !== run.state) { asked = false; $("said").hidden = true; }
    $("stop").disabled = $("resume").disabled = Boolean(asked);
    showStages(); tiles(); findings();
    if (dirty.curves) { curves(); }
    dirty = { from: Infinity, to: -1, curves: false };
    if (run.state === "finished" && !finished) { finished = true; report(); }
    if (run.state !== "finished" && finished) { finished = false; $("report").hidden = true; $("main").hidden = false; }
  }

  function sub() {
    if (!run.active) { return run.why || ""; }
    if (run.state !== "running") { return run.why || ""; }
    var parts = [];
    if (run.ask) {
      parts.push("“" + run.stage + "”: " + run.ask.request + " asked of " + run.ask.asked + (run.ask.asked === 1 ? " site" : " sites") +
        (run.ask.waiting ? ", " + run.ask.waiting + " still at it" : ", all answered"));
    }
    if (run.left !== null) { parts.push("about " + Draw.duration(run.left) + " left"); }
    return parts.join(" · ");
  }

  function tiles() {
    var found = [];
    PLOTS.forEach(function (p) {
      var points = run.curves[p[0]];
      if (points && points.length) {
        var best = points.reduce(function (a, b) { return b[1] > a[1] ? b : a; }), last = points[points.length - 1];
        found.push(Draw.tile(p[1], (100 * last[1]).toFixed(1) + "%", "round " + last[0] + " · best " + (100 * best[1]).toFixed(1) + "% in round " + best[0]));
      }
    });
    found.push(Draw.tile("Rounds", run.round + " of " + run.of, run.active && run.left !== null ? "about " + Draw.duration(run.left) + " left" : Draw.duration(run.spent) + " spent"));
    found.push(Draw.tile("Sent by the sites", Draw.size(run.totals.bytes_up), "received by them " + Draw.size(run.totals.bytes_down)));
    var bad = run.totals.refused + run.totals.absent;
    found.push(Draw.tile("Answers", run.totals.participations.toLocaleString("en"),
      bad ? run.totals.refused + " set aside · " + run.totals.absent + " absent" : "none set aside, none absent"));
    $("tiles").replaceChildren.apply($("tiles"), found);
  }

  function lanes() {
    var only = $("attention").checked;
    rows.forEach(function (row, i) {
      var now = run.active ? run.now.charCodeAt(i) - 48 : 0;
      if (row.now !== now) {
        row.now = now;
        row.cells[1].textContent = SIGNS[now] + NOW[now]; row.cells[1].className = "now-" + now;
      }
      var hide = only && !(now > 2 || row.trouble > 0 || row.noisy);
      if (row.line.hidden !== hide) { row.line.hidden = hide; }
      row.from = Math.min(row.from, dirty.from); row.to = Math.max(row.to, dirty.to);
      if (row.seen) { paint(row, i); }
    });
  }

  function paint(row, i) {
    if (row.to < row.from) { return; }
    var count = run.sites.length;
    Draw.lane(row.canvas, width, run.of, function (r) { return codes[(r + 1) * count + i]; }, palette, row.from, Math.min(row.to, run.of - 1));
    row.from = Infinity; row.to = -1;
  }

  /* Lanes are drawn when they can be seen: of 200 sites a screen shows some twenty. */
  var eyes = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      var row = rows[entry.target.dataset.row];
      if (!row || row.canvas !== entry.target) { return; }
      row.seen = entry.isIntersecting;
      if (row.seen) {
        width = Math.max(1, Math.round(entry.boundingClientRect.width));
        paint(row, +entry.target.dataset.row);
      }
    });
  });

  function curves() {
    PLOTS.forEach(function (p) {
      if (run.curves[p[0]]) { plot(p[0], p[1], true).series[p[1]] = run.curves[p[0]]; }
    });
    Object.keys(LOSSES).forEach(function (name) {
      if (run.curves[name]) { plot("losses", "Loss", false).series[LOSSES[name]] = run.curves[name]; }
    });
    Object.keys(plots).forEach(function (name) { plots[name].draw(run.of, run.stages); });
  }

  function plot(key, title, share) {
    if (!plots[key]) { plots[key] = new Draw.Plot(title, share); $("plots").append(plots[key].figure); }
    return plots[key];
  }

  function findings() {
    var found = run.findings, box = $("found"), mark = JSON.stringify(found || null);
    if (box.dataset.mark !== mark) {
      box.dataset.mark = mark;
      box.replaceChildren();
      var words = document.createElement("p");
      if (!found) {
        words.className = "note"; words.textContent = "Nothing has been said about the sites yet.";
        box.append(words);
      } else {
        words.className = "found" + (found.noisy.length ? "" : " none");
        words.textContent = "Round " + found.round + ": " + found.words + ".";
        box.append(words, bars(found));
      }
      rows.forEach(function (row, i) { noisy(row, run.sites[i], found); });
    }
    var own = Object.keys(run.own || {}).map(function (name) {
      var line = document.createElement("div"), term = document.createElement("dt"), value = document.createElement("dd");
      term.textContent = name.replace(/_/g, " ");
      value.textContent = typeof run.own[name] === "number" ? String(+run.own[name].toPrecision(4)) : run.own[name];
      line.append(term, value);
      return line;
    });
    $("own").replaceChildren.apply($("own"), own);
  }

  function bars(found) {
    var values = found.probability || found.level || {}, box = document.createElement("div");
    box.className = "bars";
    Object.keys(values).sort(function (a, b) { return values[b] - values[a]; }).slice(0, 24).forEach(function (site) {
      var line = document.createElement("div"), name = document.createElement("span"), meter = document.createElement("i"), part = document.createElement("b"), value = document.createElement("span");
      name.textContent = site; name.title = site;
      part.style.width = 100 * Math.max(0, Math.min(1, values[site])) + "%";
      meter.setAttribute("aria-hidden", "true"); meter.append(part);
      value.textContent = (100 * values[site]).toFixed(1) + "%";
      line.append(name, meter, value);
      box.append(line);
    });
    if (!box.children.length) { return ""; }
    var figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.className = "note";
    caption.textContent = found.probability ? "probability that a site is noisy" : "estimated share of wrong labels";
    figure.append(caption, box);
    return figure;
  }

  function noisy(row, site, found) {
    var old = row.cells[0].querySelector(".noisy");
    row.noisy = Boolean(found && found.noisy.indexOf(site) >= 0);
    if (old) { old.remove(); }
    if (row.noisy) {
      var badge = document.createElement("span");
      badge.className = "badge warn noisy"; badge.textContent = "looks noisy";
      row.cells[0].append(badge);
    }
  }

  function log(line) {
    var item = document.createElement("li"), time = document.createElement("time"), words = document.createElement("span");
    time.textContent = new Date(1000 * line[0]).toLocaleTimeString("en-GB");
    words.textContent = line[2]; words.className = line[1] === "ended" && line[2] === "finished" ? "done" : line[1];
    item.append(time, words);
    $("lines").prepend(item);
    while ($("lines").children.length > 400) { $("lines").lastChild.remove(); }
  }

  function report() {
    var frame = document.createElement("iframe"), alone = document.createElement("p"), link = document.createElement("a");
    frame.src = "report.html"; frame.title = "Report of this run";
    frame.setAttribute("sandbox", "allow-scripts allow-downloads allow-popups allow-modals");
    link.href = "report.html"; link.textContent = "the report alone";
    alone.append("The run is finished; this is its report. Open ", link, " to print or keep it.");
    frame.addEventListener("load", function () { $("report").hidden = false; $("main").hidden = true; });
    $("report").replaceChildren(alone, frame);
    $("report").hidden = false; frame.style.visibility = "visible";
  }

  function act(what) {
    asked = run.state; $("stop").disabled = $("resume").disabled = true;
    say(what === "stop" ? "Asked to stop: the run stops at its next safe point." : "Going on: the run reads its data.");
    post(what).then(function (answer) {
      if (answer.status === 401) { return token(what); }
      if (!answer.ok) { return answer.json().then(function (said) { asked = false; say(said.error); show(); }); }
    }).catch(function () { asked = false; say("The server did not answer."); show(); });
  }

  function post(path, body) {
    return fetch(path, { method: "POST", headers: { "X-Fedsift": "1", "Content-Type": "application/json", Accept: "application/json" }, body: JSON.stringify(body || {}) });
  }

  function token(what) {
    asked = false; show();
    var form = document.createElement("form"), label = document.createElement("label"), input = document.createElement("input"), button = document.createElement("button");
    form.className = "token"; label.textContent = "This needs the token that was printed at the start: ";
    input.type = "password"; input.name = "token"; input.autocomplete = "off"; button.textContent = "Use it";
    label.append(input); form.append(label, button);
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      post("/token", { token: input.value }).then(function (answer) {
        if (answer.ok) { act(what); } else { input.value = ""; input.placeholder = "not this one"; }
      });
    });
    $("said").replaceChildren(form); $("said").hidden = false; input.focus();
  }

  function say(words) { $("said").textContent = words; $("said").hidden = !words; }

  var waiting = [], drawing = false;
  function draw() {
    drawing = false;
    var before = performance.now(), news = waiting;
    waiting = [];
    news.forEach(take);
    show();
    window.fedsiftReady = window.fedsiftReady || performance.now();
    window.fedsiftUpdates.push(performance.now() - before);
    if (window.fedsiftUpdates.length > 2000) { window.fedsiftUpdates.shift(); }
  }

  function redraw() {
    palette = Draw.colours();
    rows.forEach(function (row) {
      row.from = 0; row.to = run.of;
      if (row.seen) { width = Draw.widthOf(row.canvas); }
    });
    if (run.of) { lanes(); }
  }

  var stream = new EventSource("events");
  stream.onmessage = function (event) {
    waiting.push(JSON.parse(event.data));
    // a page in the background is drawn when it is looked at: then everything that came is shown at once
    if (!drawing) { drawing = true; document.hidden ? setTimeout(draw, 1000) : requestAnimationFrame(draw); }
  };
  stream.onerror = function () { $("state").textContent = "no connection"; $("state").className = "state offline"; };
  $("stop").addEventListener("click", function () { act("stop"); });
  $("resume").addEventListener("click", function () { act("resume"); });
  $("attention").addEventListener("change", function () { redraw(); });
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
