/* Verdicts in the browser, where it allows that. Each is kept by what its reader saw: the site, the sample's name, its
   given label and its picture. A page that is written anew, recalibrated or without a forgotten sample, so still has
   them, and another audit whose sites and samples have the same names does not get them. */
function keptVerdicts(site) {
  "use strict";
  var shelf = "fedsift-audit:" + JSON.stringify(site) + ":";

  function digest(text) {  // FNV-1a
    var hash = 2166136261;
    for (var k = 0; k < text.length; k += 1) { hash = Math.imul(hash ^ text.charCodeAt(k), 16777619); }
    return (hash >>> 0).toString(16);
  }
  function place(item, given) {
    return shelf + JSON.stringify(item.id) + ":" + digest(JSON.stringify([given, item.picture || item.path || ""]));
  }
  // Private windows and some settings forbid all of it: the file that is saved remains.
  function attempt(action) { try { return action(localStorage); } catch (error) { return null; } }

  return {
    any: function () {  // digests of 2,000 pictures take a moment
      return attempt(function (store) {
        return Object.keys(store).some(function (key) { return key.indexOf(shelf + "\"") === 0; });
      });
    },
    get: function (item, given) {
      return attempt(function (store) { return JSON.parse(store.getItem(place(item, given))); });
    },
    put: function (item, given, verdict) {
      attempt(function (store) {
        if (verdict) { store.setItem(place(item, given), JSON.stringify(verdict)); } else { store.removeItem(place(item, given)); }
      });
    },
    reader: function () { return attempt(function (store) { return store.getItem(shelf + "reader"); }) || ""; },
    setReader: function (name) { attempt(function (store) { store.setItem(shelf + "reader", name); }); }
  };
}
