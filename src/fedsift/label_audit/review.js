(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var items = data.items, classes = data.classes, CHUNK = 60;
  var kept = keptVerdicts(data.site);
  var verdicts = new Map(), history = [];
  var view = "suspects", shown = [], drawn = 0, at = 0, picked = null;

  items.forEach(function (item, place) { item.place = place; });

  function $(id) { return document.getElementById(id); }
  // Text only ever becomes text nodes: names, ids and paths are never read as markup.
  function make(name, kind, text) {
    var node = document.createElement(name);
    if (kind) { node.className = kind; }
    if (text !== undefined) { node.textContent = text; }
    return node;
  }
  // Characters that turn or break a line are shown as what they are, as in labels.csv, so that no name looks like another.
  function visible(text) {
    return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, function (c) {
      return "\\u{" + c.charCodeAt(0).toString(16).padStart(4, "0") + "}";
    });
  }
  function same(a, b) { return a.length === b.length && a.every(function (c, k) { return c === b[k]; }); }
  function proposes(item) { return !item.blind && !same(item.given, item.proposed); }
  function names(numbers) { return numbers.map(function (c) { return classes[c]; }); }
  function percent(p) { return p > 0.995 ? "> 99\u00a0%" : Math.round(100 * p) + "\u00a0%"; }

  // What is kept: in the browser where that is allowed, and in a file that the reader saves.
  function keep(item) { kept.put(item, names(item.given), verdicts.get(item.id)); }
  function recall() {
    $("reader").value = kept.reader();
    if (!kept.any()) { return; }
    items.forEach(function (item) {
      var verdict = kept.get(item, names(item.given));
      if (verdict) { verdicts.set(item.id, verdict); }
    });
  }
  function unsaved() { return Array.from(verdicts.values()).filter(function (one) { return one.unsaved; }).length; }
  var byId = new Map(items.map(function (item) { return [item.id, item]; }));

  function notice(text) { $("notice").textContent = text; $("notice").hidden = !text; }

  // Filters ----------------------------------------------------------------------------------------------------------
  var views = {
    suspects: { name: "Suspects", has: function (item) { return item.place < data.suspects; } },
    queue: { name: "Review queue", has: function (item) { return item.queue !== undefined; } },
    off: { name: "Off the list", has: function (item) { return !!item.off; } },
    test: { name: "Test samples", has: function (item) { return !!item.test; } }
  };
  var states = {
    open: { name: "still to do", has: function (item) { return !verdicts.has(item.id); } },
    done: { name: "reviewed", has: function (item) { return verdicts.has(item.id); } }
  };
  // The class that was given and the one that is proposed; for several labels, what goes and what comes.
  function leaves(item) {
    if (!data.multilabel) { return item.given; }
    return item.blind ? [] : item.given.filter(function (c) { return item.proposed.indexOf(c) < 0; });
  }
  function comes(item) {
    if (item.blind) { return []; }
    return data.multilabel ? item.proposed.filter(function (c) { return item.given.indexOf(c) < 0; }) : item.proposed;
  }
  function choose() {
    var given = $("filter-given").value, proposed = $("filter-proposed").value, state = $("filter-state").value;
    shown = items.filter(function (item) {
      return views[view].has(item) && (given === "" || leaves(item).indexOf(+given) >= 0) &&
        (proposed === "" || comes(item).indexOf(+proposed) >= 0) && (state === "" || states[state].has(item));
    });
    if (view === "queue") { shown.sort(function (a, b) { return a.queue - b.queue; }); }
    document.querySelectorAll(".cell").forEach(function (cell) {
      cell.classList.toggle("on", given !== "" && cell.dataset.given === given && cell.dataset.proposed === proposed);
    });
    var warning = $("test-warning");
    if (warning) { warning.hidden = view !== "test"; }
    $("cards").replaceChildren();
    drawn = 0;
    if (!shown.length) { $("cards").append(make("p", "empty", "Nothing to show here.")); }
    more();
    tally();
  }
  function tally() {
    var done = shown.filter(function (item) { return verdicts.has(item.id); }).length;
    $("count").textContent = shown.length + (shown.length === 1 ? " sample, " : " samples, ") + done + " reviewed";
    $("tile-reviewed").textContent = verdicts.size.toLocaleString("en");
    $("start").disabled = !shown.length;
    $("save").disabled = !verdicts.size;
    $("save").textContent = unsaved() ? "Save verdicts (" + unsaved() + " new)" : "Save verdicts";
  }

  // Gallery ----------------------------------------------------------------------------------------------------------
  function picture(item) {
    if (!item.picture) { return make("span", "nothing", visible(item.path || item.id)); }
    var img = make("img");
    img.decoding = "async";
    img.alt = "sample " + item.id;
    img.draggable = false;
    img.addEventListener("load", function () { img.classList.toggle("small", img.naturalWidth < 100); });
    img.src = item.picture;
    return img;
  }
  function chips(numbers, kind) {
    var box = document.createDocumentFragment();
    (numbers.length ? names(numbers) : ["no finding"]).forEach(function (name) {
      var chip = make("bdi", "chip " + kind, visible(name));
      chip.title = visible(name);
      box.append(chip, " ");
    });
    return box;
  }
  function sure(item) {
    var line = make("span", "sure"), bar = make("span", "line"), fill = make("i");
    fill.style.width = 100 * item.wrong + "%";
    bar.append(fill);
    line.append(bar, percent(item.wrong));
    line.title = "probability that the given label is wrong";
    return line;
  }
  function card(item) {
    var node = make("button", "card"), thumb = make("span", "thumb"), text = make("span", "text");
    node.type = "button";
    node.dataset.id = item.id;
    thumb.append(picture(item));
    text.append(chips(item.given, "given"));
    if (proposes(item)) { text.append(chips(item.proposed, "proposed")); }
    if (!item.blind && item.flagged) { text.append(sure(item)); }
    var who = make("bdi", "who", visible(item.id));
    who.title = visible(item.path || item.id);
    text.append(who);
    node.append(thumb, text);
    node.addEventListener("click", function () { open(shown.indexOf(item)); });
    mark(node, item);
    return node;
  }
  function mark(node, item) {
    var verdict = verdicts.get(item.id), badge = node.querySelector(".done");
    node.classList.toggle("done", !!verdict);
    if (badge) { badge.remove(); }
    if (verdict) { node.append(make("span", "done", "✓ " + verdict.decision)); }
  }
  function more() {
    if (drawn >= shown.length) { return; }
    var part = document.createDocumentFragment();
    shown.slice(drawn, drawn + CHUNK).forEach(function (item) { part.append(card(item)); });
    drawn = Math.min(shown.length, drawn + CHUNK);
    $("cards").append(part);
  }
  new IntersectionObserver(function (seen) {
    if (seen.some(function (one) { return one.isIntersecting; })) {
      more();
      // a tall window may still see the end: look again after the cards have their place
      if (drawn < shown.length) { this.unobserve($("more")); this.observe($("more")); }
    }
  }, { rootMargin: "900px" }).observe($("more"));

  // Review -----------------------------------------------------------------------------------------------------------
  function open(number) {
    at = Math.max(0, number);
    if (!$("review").open) { $("review").showModal(); }
    show();
  }
  function fact(list, name, content) {
    var value = make("dd");
    value.append(content);
    list.append(make("dt", "", name), value);
  }
  function show() {
    var item = shown[at], verdict = verdicts.get(item.id), facts = make("dl");
    $("place").textContent = (at + 1) + " of " + shown.length;
    var done = shown.filter(function (one) { return verdicts.has(one.id); }).length;
    $("progress").style.width = 100 * done / shown.length + "%";
    $("picture").replaceChildren(picture(item));
    fact(facts, "given", chips(item.given, "given"));
    if (proposes(item)) {
      fact(facts, "proposed", chips(item.proposed, "proposed"));
      fact(facts, "probably wrong", percent(item.wrong));
    } else {
      // the same words whether nothing is proposed or the proposal is hidden: a blind reader must not know which
      fact(facts, "proposed", make("span", "note", "none shown: judge by the picture alone"));
      if (item.flagged) { fact(facts, "probably wrong", percent(item.wrong)); }
    }
    if (item.reason) { fact(facts, "why", visible(item.reason)); }
    fact(facts, "sample", make("bdi", "", visible(item.id)));
    if (item.path) { fact(facts, "file", make("bdi", "", visible(item.path))); }
    if (verdict) { fact(facts, "your verdict", visible(said(verdict))); }
    $("facts").replaceChildren(facts);
    $("others").hidden = true;
    document.querySelectorAll("#decisions button").forEach(function (button) {
      var decision = button.dataset.decision;
      button.hidden = (decision === "proposal" || decision === "both") && !proposes(item);
      button.setAttribute("aria-pressed", !!verdict && verdict.decision === decision);
    });
    $("back").disabled = at === 0;
    $("next").disabled = at >= shown.length - 1;
    $("undo").disabled = !history.length;
  }
  function said(verdict) {
    return verdict.decision + (verdict.decision === "other" ? ": " + (verdict.labels.join(", ") || "no finding") : "");
  }
  function decide(decision) {
    var item = shown[at];
    if ((decision === "proposal" || decision === "both") && !proposes(item)) { return; }
    if (decision === "other") { others(item); return; }
    var labels = { given: item.given, proposal: item.proposed, both: [], "cannot tell": [] }[decision];
    settle(item, decision, names(labels));
  }
  function settle(item, decision, labels) {
    history.push({ id: item.id, before: verdicts.get(item.id) });
    // with the labels that are shown now: a page that is written anew may propose something else
    verdicts.set(item.id, { decision: decision, labels: labels, when: new Date().toISOString(),
      given: names(item.given).join("|"), proposed: proposes(item) ? names(item.proposed) : null, unsaved: true });
    changed(item);
    $("others").replaceChildren();  // a search that is only hidden would keep the keys until the next frame
    if (at < shown.length - 1) { at += 1; }
    show();
  }
  function changed(item) {
    keep(item);
    tally();
    var node = Array.from($("cards").children).find(function (one) { return one.dataset.id === item.id; });
    if (node) { mark(node, item); }
  }
  function undo() {
    var last = history.pop();
    if (!last) { return; }
    var item = byId.get(last.id);
    if (last.before) { verdicts.set(last.id, last.before); } else { verdicts.delete(last.id); }
    changed(item);
    var place = shown.indexOf(item);
    if (place >= 0) { at = place; }
    show();
  }
  // One class: the first that is chosen. Several labels: a set, taken over with a button.
  function others(item) {
    var box = $("others"), search = make("input"), list = make("div", "list");
    picked = new Set(data.multilabel ? item.given : []);
    search.type = "text";
    search.placeholder = "Type to find a class, Enter takes the first";
    search.setAttribute("aria-label", "Find a class");
    function fill() {
      var wanted = search.value.trim().toLowerCase();
      list.replaceChildren();
      classes.forEach(function (name, c) {
        if (wanted && name.toLowerCase().indexOf(wanted) < 0) { return; }
        var button = make("button", "", visible(name));
        button.type = "button";
        if (data.multilabel) { button.setAttribute("aria-pressed", picked.has(c)); }
        button.addEventListener("click", function () { take(c); });
        list.append(button);
      });
    }
    function take(c) {
      if (!data.multilabel) { settle(item, "other", [classes[c]]); return; }
      if (!picked.delete(c)) { picked.add(c); }
      search.value = "";
      fill();
    }
    search.addEventListener("input", fill);
    search.addEventListener("keydown", function (event) {
      if (event.key === "Enter") {
        var first = list.querySelector("button");
        if (first) { first.click(); }
        event.preventDefault();
      }
    });
    box.replaceChildren(search, list);
    if (data.multilabel) {
      var over = make("button", "main", "Take these");
      over.type = "button";
      over.addEventListener("click", function () {
        settle(item, "other", names(Array.from(picked).sort(function (a, b) { return a - b; })));
      });
      box.append(over);
    }
    fill();
    box.hidden = false;
    search.focus();
  }
  function move(step) {
    var to = at + step;
    if (to >= 0 && to < shown.length) { at = to; show(); }
  }
  document.addEventListener("keydown", function (event) {
    if (!$("review").open || event.altKey || event.metaKey) { return; }
    if (event.ctrlKey) { if (event.key.toLowerCase() === "z") { undo(); event.preventDefault(); } return; }
    if (event.target.tagName === "INPUT") { return; }
    var decisions = { 1: "given", g: "given", 2: "proposal", p: "proposal", 3: "other", o: "other", 4: "both", b: "both",
      5: "cannot tell", c: "cannot tell" };
    var pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (decisions[pressed] && document.querySelector('[data-decision="' + decisions[pressed] + '"]')) { decide(decisions[pressed]); }
    else if (pressed === "ArrowRight") { move(1); }
    else if (pressed === "ArrowLeft") { move(-1); }
    else if (pressed === "u") { undo(); }
    else { return; }
    event.preventDefault();
  });

  // Files ------------------------------------------------------------------------------------------------------------
  function save() {
    var reader = $("reader").value.trim();
    var file = {
      format: data.format, site: data.site, audit: data.audit, reader: reader, saved: new Date().toISOString(),
      verdicts: Array.from(verdicts, function (pair) {
        var item = byId.get(pair[0]);
        return { id: pair[0], given: pair[1].given, proposed: pair[1].proposed, decision: pair[1].decision,
          labels: pair[1].labels, when: pair[1].when, blind: !!item.blind };
      })
    };
    var link = make("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(file, null, 1)], { type: "application/json" }));
    link.download = ["verdicts", data.site, reader].filter(Boolean).join("-").replace(/[^\w.-]+/g, "_") + ".json";
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
    verdicts.forEach(function (one, id) { one.unsaved = false; keep(byId.get(id)); });
    notice("Saved as " + link.download + ". Hand it in with: fedsift review import");
    tally();
  }
  function load(file) {
    file.text().then(function (text) {
      var read = JSON.parse(text);
      if (read.format !== data.format || read.site !== data.site) { throw new Error("it is not a verdicts file of this site"); }
      var known = read.verdicts.filter(function (one) {
        return byId.has(one.id) && [undefined, names(byId.get(one.id).given).join("|")].indexOf(one.given) >= 0;
      });
      known.forEach(function (one) {
        verdicts.set(one.id, { decision: one.decision, labels: one.labels, when: one.when, given: one.given, proposed: one.proposed });
        keep(byId.get(one.id));
      });
      if (read.reader && !$("reader").value) { $("reader").value = read.reader; kept.setReader(read.reader); }
      var lost = read.verdicts.length - known.length;
      notice(known.length + (known.length === 1 ? " verdict" : " verdicts") + " loaded" +
        (lost ? "; " + lost + " on samples, or labels of them, that this page does not show" : "") + ".");
      choose();
    }).catch(function (error) { notice("This file cannot be loaded: " + error.message); });
  }

  // Wiring -----------------------------------------------------------------------------------------------------------
  function option(select, value, text) {
    var node = make("option", "", text);
    node.value = value;
    select.append(node);
  }
  function used(of) { return new Set(items.flatMap(of)); }
  var out = used(leaves), into = used(comes);
  classes.forEach(function (name, c) {
    if (out.has(c)) { option($("filter-given"), c, visible(name)); }
    if (into.has(c)) { option($("filter-proposed"), c, visible(name)); }
  });
  Object.keys(states).forEach(function (state) { option($("filter-state"), state, states[state].name); });
  Object.keys(views).forEach(function (name) {
    var count = items.filter(views[name].has).length;
    if (!count && name !== "suspects") { return; }
    var button = make("button", "", views[name].name + " " + count.toLocaleString("en"));
    button.type = "button";
    button.dataset.view = name;
    button.addEventListener("click", function () { look(name); });
    $("views").append(button);
  });
  function look(name) {
    view = name;
    document.querySelectorAll("[data-view]").forEach(function (button) {
      button.setAttribute("aria-pressed", button.dataset.view === view);
    });
    choose();
  }
  function pair(node) {
    $("filter-given").value = node.dataset.given;
    $("filter-proposed").value = node.dataset.proposed;
    look("suspects");
    $("gallery").scrollIntoView();
  }
  document.querySelectorAll(".cell[role=button],button.pair").forEach(function (node) {
    node.addEventListener("click", function () { pair(node); });
    if (node.tagName !== "BUTTON") {
      node.addEventListener("keydown", function (event) {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pair(node); }
      });
    }
  });
  ["given", "proposed", "state"].forEach(function (name) { $("filter-" + name).addEventListener("change", choose); });
  document.querySelectorAll("#decisions button").forEach(function (button) {
    button.addEventListener("click", function () { decide(button.dataset.decision); });
  });
  $("start").addEventListener("click", function () {
    var first = shown.findIndex(function (item) { return !verdicts.has(item.id); });
    open(first < 0 ? 0 : first);
  });
  $("close").addEventListener("click", function () { $("review").close(); });
  $("back").addEventListener("click", function () { move(-1); });
  $("next").addEventListener("click", function () { move(1); });
  $("undo").addEventListener("click", undo);
  $("save").addEventListener("click", save);
  $("load").addEventListener("click", function () { $("file").click(); });
  $("file").addEventListener("change", function () { if (this.files[0]) { load(this.files[0]); this.value = ""; } });
  $("reader").addEventListener("change", function () { kept.setReader($("reader").value); });
  window.addEventListener("beforeunload", function (event) { if (unsaved()) { event.preventDefault(); } });
  recall();
  look(Object.keys(views).find(function (name) { return items.some(views[name].has); }) || "suspects");
})();
