/* A site's own page: its answers, what left it, its audit. */
(function () {
  var $ = function (id) { return document.getElementById(id); }, told = null, audit = false;

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
    var count = told.lane.length;
    $("headline").textContent = (told.answered ? told.name + " has answered " + told.answered + (told.answered === 1 ? " request" : " requests") + "; "
      + Draw.size(told.bytes) + " left it" : "Nothing has left " + told.name + " so far") + ".";
    $("tiles").replaceChildren(Draw.tile("Answered", told.answered.toLocaleString("en"), told.runs.length ? "in " + told.runs.join(", ") : "no run yet"),
      Draw.tile("Refused by this site", String(told.refused), "by its own policy, or because it could not"), Draw.tile("Left this site", Draw.size(told.bytes), "every line is in egress.jsonl"));
    Draw.lane($("strip"), Draw.widthOf($("strip")), count, function (i) { return told.lane.charCodeAt(i) - 48; }, Draw.colours(), 0, count - 1);
    $("lines").replaceChildren(table(told.lines));
    if (!audit || !told.audit) {
      audit = told.audit;
      var words = document.createElement("p"), link = document.createElement("a");
      if (told.audit) {
        link.href = "audit.html"; link.textContent = "Open this site’s audit";
        words.append(link, ": which of its labels are probably wrong. It stays on this machine.");
      } else { words.textContent = "There is none yet. `fedsift flower audit site.toml` writes it when a run has judged this site’s labels."; }
      $("audited").replaceChildren(words);
    }
  }

  var stream = new EventSource("events");
  stream.onmessage = function (event) {
    told = JSON.parse(event.data);
    $("state").textContent = "up to date"; $("state").className = "state";
    show();
  };
  stream.onerror = function () { $("state").textContent = "no connection"; $("state").className = "state offline"; };
  window.addEventListener("resize", function () { if (told) { show(); } });
})();
