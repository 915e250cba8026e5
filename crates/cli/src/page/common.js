const $ = (id) => document.getElementById(id);
const count = (number) => Math.round(number).toLocaleString("en");
const short = (number) => number.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Where this server begins: a proxy may have put a path in front of us. */
const BASE = location.pathname.match(/^(.*?\/)room\//)?.[1] ?? location.pathname.replace(/[^/]*$/, "");

/** A WebSocket URL, with the page's token. */
function address(path) {
  const url = new URL(BASE + path + location.search, location);
  url.protocol = url.protocol.replace("http", "ws");
  return url.href;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

/** The name that a storage keeps; a browser may forbid it. */
const memory = (storage) => ({
  get() { try { return window[storage].getItem("windlass.user"); } catch { return null; } },
  set(name) { try { window[storage].setItem("windlass.user", name); } catch { /* Then it is not kept. */ } },
});

/** A new element. Its content is text, never markup. */
function element(name, className, text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

function whyEnded({ code, reason }) {
  const words = {
    1000: "The server has closed the connection.",
    1001: "The server is going away.",
    1006: "The connection broke off.",
    1007: "The server found a text that is not UTF-8.",
    1008: "The server does not allow this.",
    1009: "A message was longer than the server takes.",
    1011: "The server has failed.",
    1013: "The server has too much to do. Try again later.",
  }[code] ?? "The connection has ended.";
  return reason ? `${words} It says: ${reason}` : words;
}

