// Tests `windlass serve` with the library ws.
//
// usage: node client.js alone URL
//        node client.js relay URL NAME PEER...
//        node client.js goodbye URL
//        node client.js serve plain
//        node client.js serve CERTIFICATE KEY
//
// Prints `test NAME ... ok` or `test NAME ... FAILED: why` for each test.
// ../README.md describes the tests.
"use strict";

const { WebSocket } = require("ws");

const PATIENCE_MS = 60000;
const SIZES = [0, 1, 125, 126, 65535, 65536, 1 << 20];
// The option --message-max of the server.
const MESSAGE_MAX = 2 << 20;
const RELAYED = 300;

const textOf = (size) => String.fromCharCode(...Array.from({ length: 26 }, (_, at) => 97 + ((7 * at + size) % 26))).repeat(size / 26 + 1).slice(0, size);
const bytesOf = (size) => Buffer.from(Uint8Array.from({ length: size }, (_, at) => (131 * at + 7 * (at >> 8) + size) & 255));

function check(isSo, what) {
  if (!isSo) throw new Error(what);
}

/** Opens a connection: `recv` resolves to the next message, `closed` to the server's close code. */
async function open(url, path = "/echo", options = {}) {
  const deflate = options.deflate ? { threshold: 0 } : false;
  const socket = new WebSocket(url + path, { perMessageDeflate: deflate, ...options });
  const [messages, waiting] = [[], []];
  socket.on("message", (data, isBinary) => {
    const message = isBinary ? data : data.toString();
    if (waiting.length) waiting.shift().resolve(message);
    else messages.push(message);
  });
  const ended = new Promise((resolve) => socket.on("close", (code) => {
    for (const { reject } of waiting) reject(new Error(`closed with ${code}`));
    resolve(code);
  }));
  const recv = () => messages.length ? Promise.resolve(messages.shift()) : new Promise((resolve, reject) => waiting.push({ resolve, reject }));
  let head;
  socket.on("upgrade", (response) => { head = response.headers; });
  await new Promise((resolve, reject) => { socket.on("open", resolve); socket.on("error", reject); });
  // After the handshake errors are followed by the close event.
  socket.on("error", () => {});
  return { socket, recv, ended, head };
}

async function close({ socket, ended }, code, reason) {
  socket.close(code, reason);
  return ended;
}

const same = (one, other) => typeof one === typeof other && (typeof one === "string" ? one === other : one.equals(other));

async function echoes({ socket, recv }, message, what) {
  socket.send(message);
  const answer = await recv();
  check(same(answer, message), `${what}: other content, ${answer.length} long`);
}

const ALONE = {
  async handshake_without_compression(url) {
    const client = await open(url);
    check(client.head["sec-websocket-extensions"] === undefined, "an extension that nobody offered");
    await echoes(client, "hello", "a greeting");
    await close(client, 1000);
  },

  async handshake_with_compression(url) {
    const client = await open(url, "/echo", { deflate: true });
    check(client.socket.extensions.includes("permessage-deflate"), `agreed: ${client.socket.extensions}`);
    await echoes(client, "hello".repeat(100), "a greeting");
    await close(client, 1000);
  },

  async no_subprotocol_is_chosen(url) {
    const client = await open(url);
    check(client.head["sec-websocket-protocol"] === undefined && client.socket.protocol === "", "one that nobody offered");
    await close(client, 1000);
    // This library closes the connection if the server selects no offered subprotocol.
    const offer = new WebSocket(url + "/echo", ["chat", "superchat"]);
    const error = await new Promise((resolve) => { offer.on("error", resolve); offer.on("open", () => resolve(null)); });
    check(error?.message === "Server sent no subprotocol", `${error}`);
  },

  async another_origin_is_refused(url) {
    const refused = await open(url, "/echo", { origin: "http://elsewhere.example" }).then(() => null, (error) => error);
    check(refused?.message === "Unexpected server response: 403", `${refused}`);
    const client = await open(url, "/echo", { origin: url.replace("ws", "http") });
    await echoes(client, "hello", "its own origin");
    await close(client, 1000);
  },

  text_comes_back: (url) => echoOfSizes(url, textOf, false),
  binary_comes_back: (url) => echoOfSizes(url, bytesOf, false),
  compressed_text_comes_back: (url) => echoOfSizes(url, textOf, true),
  compressed_binary_comes_back: (url) => echoOfSizes(url, bytesOf, true),

  async fragments_are_joined(url) {
    for (const deflate of [false, true]) {
      const client = await open(url, "/echo", { deflate });
      // Pieces of text end within characters.
      for (const whole of ["ü€".repeat(14000), bytesOf(70000)]) {
        const bytes = Buffer.from(whole);
        for (let at = 0; at <= bytes.length; at += 9999) {
          client.socket.send(bytes.subarray(at, at + 9999), { binary: typeof whole !== "string", fin: at + 9999 > bytes.length });
          client.socket.ping("between");
        }
        check(same(await client.recv(), whole), "the whole is another");
      }
      await close(client, 1000);
    }
  },

  async pings_are_answered(url) {
    const client = await open(url);
    for (const payload of [Buffer.alloc(0), Buffer.from("x"), bytesOf(125)]) {
      const pong = new Promise((resolve) => client.socket.once("pong", resolve));
      client.socket.ping(payload);
      check(same(await pong, payload), "another payload");
    }
    await echoes(client, "after", "a message after pings");
    await close(client, 1000);
  },

  async closing_codes_come_back(url) {
    for (const [code, reason] of [[1000, ""], [1001, "bye"], [3000, "own"], [4999, "ü".repeat(61)]]) {
      const answer = await close(await open(url), code, reason);
      check(answer === code, `${code} is answered by ${answer}`);
    }
    // The answer to a Close without a code has no code.
    const answer = await close(await open(url));
    check(answer === 1005, `none is answered by ${answer}`);
  },

  async faults_close_with_their_code(url) {
    const tooLong = Buffer.alloc(MESSAGE_MAX + 1);
    for (const [what, code, message, binary, deflate] of [
      ["no UTF-8", 1007, Buffer.from([0xc3, 0x28]), false, false],
      ["too long", 1009, tooLong, true, false],
      ["too long when unpacked", 1009, tooLong, true, true],
    ]) {
      const client = await open(url, "/echo", { deflate });
      client.socket.send(message, { binary });
      const answer = await client.ended;
      check(answer === code, `${what}: ${answer}`);
    }
  },

  async many_connections_at_once(url) {
    const one = async (number) => {
      const client = await open(url, "/echo", { deflate: number % 2 === 1 });
      const messages = Array.from({ length: 20 }, (_, at) => (at % 2 ? textOf(31 * at + number) : bytesOf(17 * at + number)));
      for (const message of messages) client.socket.send(message);
      for (const message of messages) check(same(await client.recv(), message), `connection ${number}`);
      await close(client, 1000);
    };
    await Promise.all(Array.from({ length: 50 }, (_, number) => one(number)));
  },
};

async function echoOfSizes(url, make, deflate) {
  const client = await open(url, "/echo", { deflate });
  for (const size of SIZES) await echoes(client, make(size), size);
  await close(client, 1000);
}

/** Returns the message of this number from this client: alternately text and bytes. */
function relayed(name, number) {
  const text = `${name} ${number} ` + "ü€".repeat((7 * number) % 400);
  return number % 2 ? text : Buffer.from(text);
}

/** Sends numbered messages to a room, and expects those of each peer in order. */
async function relay(url, name, peers) {
  const client = await open(url, "/room/tower", { deflate: true });
  const nextOf = new Map(peers.map((peer) => [peer, null]));
  client.socket.send(`${name} here`);
  while ([...nextOf.values()].some((number) => number !== RELAYED)) {
    const message = await client.recv();
    const text = message.toString();
    const [peer, number] = text.split(" ");
    check(nextOf.has(peer), `${peer} is heard, which is no peer`);
    if (number === "here") {
      if (nextOf.get(peer) !== null) continue;
      nextOf.set(peer, 0);
      // Peers that joined earlier have not received our greeting, and later ones need it.
      client.socket.send(`${name} here`);
      if (![...nextOf.values()].includes(null)) for (let at = 0; at < RELAYED; at++) client.socket.send(relayed(name, at));
      continue;
    }
    const expected = nextOf.get(peer);
    check(expected !== null && same(message, relayed(peer, expected)), `${peer}: ${expected} expected, ${text.slice(0, 40)} came`);
    nextOf.set(peer, expected + 1);
  }
  await close(client, 1000);
}

async function goodbye(url) {
  const client = await open(url);
  await echoes(client, "hello", "a greeting");
  console.log("ready");
  const code = await client.ended;
  check(code === 1001, `closed with ${code}`);
}

async function run(name, test) {
  let timer;
  const tooLong = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error("it takes too long")), PATIENCE_MS); });
  try {
    await Promise.race([test(), tooLong]);
    console.log(`test ${name} ... ok`);
  } catch (error) {
    console.error(error);
    console.log(`test ${name} ... FAILED: ${String(error).slice(0, 300).replaceAll("\n", " ")}`);
  }
  clearTimeout(timer);
}

async function main([what, url, ...names]) {
  if (what === "alone") {
    for (const [name, test] of Object.entries(ALONE)) await run(name, () => test(url));
  } else if (what === "relay") {
    await run("a_room_hears_everybody_in_order", () => relay(url, names[0], names.slice(1)));
  } else if (what === "goodbye") {
    await run("a_stop_says_goodbye", () => goodbye(url));
  } else if (what === "serve") {
    await require("./server.js").serve(url, names[0]);
  } else {
    console.error(`there is no ${what}`);
    process.exitCode = 2;
  }
}

// A connection that a failed test has left open must not keep the program running.
main(process.argv.slice(2)).then(() => process.exit());
