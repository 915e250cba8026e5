package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

// Serves until it is killed. ../python/server.py describes its paths.
func serve(certificate string, key []string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr().(*net.TCPAddr).Port)
	if len(key) == 0 {
		log.Fatal(http.Serve(listener, http.HandlerFunc(handle)))
	}
	log.Fatal(http.ServeTLS(listener, http.HandlerFunc(handle), certificate, key[0]))
}

func handle(writer http.ResponseWriter, request *http.Request) {
	upgrader := websocket.Upgrader{EnableCompression: true}
	if request.URL.Path == "/fragments" {
		// The small buffer makes the fragments.
		upgrader.WriteBufferSize = 1024
	}
	socket, err := upgrader.Upgrade(writer, request, nil)
	if err != nil {
		return
	}
	defer socket.Close()
	deadline := time.Now().Add(patience)
	switch request.URL.Path {
	case "/close":
		message := websocket.FormatCloseMessage(4001, "by the server")
		_ = socket.WriteControl(websocket.CloseMessage, message, deadline)
	case "/ping":
		socket.SetPongHandler(func(payload string) error {
			if payload != "from the server" {
				return nil
			}
			return socket.WriteMessage(text, []byte("ponged"))
		})
		_ = socket.WriteControl(websocket.PingMessage, []byte("from the server"), deadline)
	}
	for {
		kind, message, err := socket.ReadMessage()
		if err != nil {
			return
		}
		writer, err := socket.NextWriter(kind)
		if err != nil {
			return
		}
		// A whole message that is longer than the buffer is one frame, so it is written in halves.
		half := len(message) / 2
		_, _ = writer.Write(message[:half])
		_, _ = writer.Write(message[half:])
		if writer.Close() != nil {
			return
		}
	}
}
