/* A site's own page: its answers, what left it, its audit. */
(function () {
  var $ = function (id) { return document.getElementById(id); }, view = null, audit = false;

  function cell(line, words, title) {
    var made = line.insertCell();
    made.textContent = words;
    if (title) { made.title = title; }
    return made;
  }

  function table(lines) {
    var made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    ["when", "run", "request", "what left", "bytes", "sha256"].forEach(function (word) {
      var th = document.createElement("th");
      th.scope = "col"; th.textContent = word; head.append(th);
    });
    lines.slice().reverse().forEach(function (line) {
      var row = body.insertRow();
      cell(row, line.at.replace("T", " ").replace(/\+00:00$/, " UTC"));
      cell(row, line.run); cell(row, line.request);
      cell(row, line.refused ? "refused: " + line.refused : line.fields.join(", ") || "–");
      cell(row, Draw.size(line.bytes)).className = "n";
      cell(row, line.sha256);
    });
    return made;
  }

  function show() {
    var count = view.lane.length;
    $("headline").textContent = (view.answered ? view.name + " has answered " + view.answered + (view.answered === 1 ? " request" : " requests") + "; "
      + Draw.size(view.bytes) + " left it" : "Nothing has left " + view.name + " so far") + ".";
    $("tiles").replaceChildren(Draw.tile("Answered", view.answered.toLocaleString("en"), view.runs.length ? "in " + view.runs.join(", ") : "no run yet"),
      Draw.tile("Refused by this site", String(view.refused), "by its own policy, or because it could not"), Draw.tile("Left this site", Draw.size(view.bytes), "every line is in egress.jsonl"));
    Draw.lane($("strip"), Draw.widthOf($("strip")), count, function (i) { return view.lane.charCodeAt(i) - 48; }, Draw.colours(), 0, count - 1);
    $("lines").replaceChildren(table(view.lines));
    if (!audit || !view.audit) {
      audit = view.audit;
      var words = document.createElement("p"), link = document.createElement("a");
      if (view.audit) {
        link.href = "audit.html"; link.textContent = "Open this site’s audit";
        words.append(link, ": which of its labels are probably wrong. It stays on this machine.");
      } else { words.textContent = "There is none yet. `fedsift flower audit site.toml` writes it when a run has judged this site’s labels."; }
      $("audited").replaceChildren(words);
    }
  }

  var stream = new EventSource("events");
  stream.onmessage = function (event) {
    view = JSON.parse(event.data);
    $("state").textContent = "up to date"; $("state").className = "state";
    show();
  };
  stream.onerror = function () { $("state").textContent = "no connection"; $("state").className = "state offline"; };
  window.addEventListener("resize", function () { if (view) { show(); } });
})();
