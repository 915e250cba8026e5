// A server with the library ws, for the client of windlass-websocket. ../python/server.py describes
// its paths.
"use strict";

const { readFileSync } = require("fs");
const { WebSocketServer } = require("ws");

/** Serves until it is killed. */
exports.serve = (certificate, key) => new Promise(() => {
  const server = key
    ? require("https").createServer({ cert: readFileSync(certificate), key: readFileSync(key) })
    : require("http").createServer();
  const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 } });
  sockets.on("connection", (socket, request) => {
    if (request.url === "/close") return socket.close(4001, "by the server");
    if (request.url === "/ping") {
      socket.once("pong", (payload) => {
        if (payload.toString() === "from the server") socket.send("ponged");
      });
      socket.ping("from the server");
    }
    socket.on("message", (data, binary) => {
      const size = request.url === "/fragments" ? Math.floor(data.length / 3) + 1 : data.length + 1;
      for (let at = 0; at <= data.length; at += size) {
        socket.send(data.subarray(at, at + size), { binary, fin: at + size > data.length });
      }
    });
  });
  server.listen(0, "127.0.0.1", () => console.log("listening on", server.address().port));
});
