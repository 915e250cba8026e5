// Tests `windlass serve` with the library gorilla/websocket.
//
// usage: client alone URL | client relay URL NAME PEER... | client goodbye URL
// | client serve plain | client serve CERTIFICATE KEY
//
// Prints `test NAME ... ok` or `test NAME ... FAILED: why` for each test.
// ../README.md describes the tests.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	patience = 60 * time.Second
	// What the server is started with.
	messageMax = 2 << 20
	relayed    = 300
	text       = websocket.TextMessage
	binary     = websocket.BinaryMessage
)

var sizes = []int{0, 1, 125, 126, 65535, 65536, 1 << 20}

func textOf(size int) []byte {
	made := make([]byte, size)
	for at := range made {
		made[at] = byte('a' + (7*(at%26)+size)%26)
	}
	return made
}

func bytesOf(size int) []byte {
	made := make([]byte, size)
	for at := range made {
		made[at] = byte(131*at + 7*(at>>8) + size)
	}
	return made
}

// The options of a connection.
type options struct {
	compress  bool
	protocols []string
	origin    string
}

func open(url, path string, asked options) (*websocket.Conn, *http.Response, error) {
	// The small buffer makes fragments of what is written in pieces.
	dialer := websocket.Dialer{
		HandshakeTimeout: patience, EnableCompression: asked.compress, Subprotocols: asked.protocols, WriteBufferSize: 1024,
	}
	header := http.Header{}
	if asked.origin != "" {
		header.Set("Origin", asked.origin)
	}
	socket, response, err := dialer.Dial(url+path, header)
	if err == nil {
		err = socket.SetReadDeadline(time.Now().Add(patience))
	}
	return socket, response, err
}

// Opens a connection to the echo, calls a function with it, and closes it.
func with(url string, asked options, work func(*websocket.Conn, *http.Response) error) error {
	socket, response, err := open(url, "/echo", asked)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := work(socket, response); err != nil {
		return err
	}
	return closeWith(socket, websocket.CloseNormalClosure, "")
}

// Sends a Close, and expects the same code from the server.
func closeWith(socket *websocket.Conn, code int, reason string) error {
	message := websocket.FormatCloseMessage(code, reason)
	if err := socket.WriteControl(websocket.CloseMessage, message, time.Now().Add(patience)); err != nil {
		return err
	}
	return endsWith(socket, code)
}

// Expects the end of the connection, and no message before it.
func endsWith(socket *websocket.Conn, code int) error {
	_, _, err := socket.ReadMessage()
	var closed *websocket.CloseError
	if !errors.As(err, &closed) {
		return fmt.Errorf("code %d expected, there is %v", code, err)
	}
	if closed.Code != code {
		return fmt.Errorf("code %d expected, %d came", code, closed.Code)
	}
	return nil
}

func receives(socket *websocket.Conn, kind int, message []byte) error {
	gotKind, got, err := socket.ReadMessage()
	if err != nil {
		return err
	}
	if gotKind != kind || !bytes.Equal(got, message) {
		return fmt.Errorf("kind %d of %d bytes: kind %d, %d bytes came", kind, len(message), gotKind, len(got))
	}
	return nil
}

func echoes(socket *websocket.Conn, kind int, message []byte) error {
	if err := socket.WriteMessage(kind, message); err != nil {
		return err
	}
	return receives(socket, kind, message)
}

func handshakeWithoutCompression(url string) error {
	return with(url, options{}, func(socket *websocket.Conn, response *http.Response) error {
		if agreed, any := response.Header["Sec-Websocket-Extensions"]; any {
			return fmt.Errorf("extensions that nobody offered: %v", agreed)
		}
		return echoes(socket, text, []byte("hello"))
	})
}

func handshakeWithCompression(url string) error {
	return with(url, options{compress: true}, func(socket *websocket.Conn, response *http.Response) error {
		if agreed := response.Header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(agreed, "permessage-deflate") {
			return fmt.Errorf("agreed: %q", agreed)
		}
		return echoes(socket, text, bytes.Repeat([]byte("hello"), 100))
	})
}

func noSubprotocolIsChosen(url string) error {
	return with(url, options{protocols: []string{"chat", "superchat"}}, func(socket *websocket.Conn, _ *http.Response) error {
		if socket.Subprotocol() != "" {
			return fmt.Errorf("chosen: %s", socket.Subprotocol())
		}
		return echoes(socket, text, []byte("hello"))
	})
}

func anotherOriginIsRefused(url string) error {
	socket, response, err := open(url, "/echo", options{origin: "http://elsewhere.example"})
	if err == nil {
		socket.Close()
		return errors.New("it is let in")
	}
	if response == nil || response.StatusCode != http.StatusForbidden {
		return fmt.Errorf("not refused by 403: %v, %v", response, err)
	}
	own := options{origin: strings.Replace(url, "ws", "http", 1)}
	return with(url, own, func(socket *websocket.Conn, _ *http.Response) error {
		return echoes(socket, text, []byte("hello"))
	})
}

// Returns the test that echoes messages of every size.
func comesBack(kind int, content func(int) []byte, compress bool) func(string) error {
	return func(url string) error {
		return with(url, options{compress: compress}, func(socket *websocket.Conn, _ *http.Response) error {
			for _, size := range sizes {
				if err := echoes(socket, kind, content(size)); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func fragmentsAreJoined(url string) error {
	for _, compress := range []bool{false, true} {
		err := with(url, options{compress: compress}, func(socket *websocket.Conn, _ *http.Response) error {
			if err := inFragments(socket, text, bytes.Repeat([]byte("ü€"), 14000)); err != nil {
				return err
			}
			return inFragments(socket, binary, bytesOf(70000))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func inFragments(socket *websocket.Conn, kind int, whole []byte) error {
	writer, err := socket.NextWriter(kind)
	if err != nil {
		return err
	}
	for rest := whole; len(rest) > 0; {
		piece := rest[:min(len(rest), 9999)]
		rest = rest[len(piece):]
		if _, err := writer.Write(piece); err != nil {
			return err
		}
		if err := socket.WriteControl(websocket.PingMessage, []byte("between"), time.Now().Add(patience)); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return receives(socket, kind, whole)
}

func min(one, other int) int {
	if one < other {
		return one
	}
	return other
}

func pingsAreAnswered(url string) error {
	return with(url, options{}, func(socket *websocket.Conn, _ *http.Response) error {
		var pongs []string
		socket.SetPongHandler(func(payload string) error {
			pongs = append(pongs, payload)
			return nil
		})
		payloads := [][]byte{{}, []byte("x"), bytesOf(125)}
		for _, payload := range payloads {
			if err := socket.WriteControl(websocket.PingMessage, payload, time.Now().Add(patience)); err != nil {
				return err
			}
			// Pongs are noticed while a message is read.
			if err := echoes(socket, text, []byte("after")); err != nil {
				return err
			}
		}
		for at, payload := range payloads {
			if len(pongs) != len(payloads) || pongs[at] != string(payload) {
				return fmt.Errorf("pongs: %q", pongs)
			}
		}
		return nil
	})
}

func closingCodesComeBack(url string) error {
	codes := map[int]string{1000: "", 1001: "bye", 3000: "own", 4999: strings.Repeat("ü", 61), websocket.CloseNoStatusReceived: ""}
	for code, reason := range codes {
		socket, _, err := open(url, "/echo", options{})
		if err != nil {
			return err
		}
		err = closeWith(socket, code, reason)
		socket.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func faultsCloseWithTheirCode(url string) error {
	tooLong := make([]byte, messageMax+1)
	for _, fault := range []struct {
		code     int
		kind     int
		message  []byte
		compress bool
	}{{1007, text, []byte{0xc3, 0x28}, false}, {1009, binary, tooLong, false}, {1009, binary, tooLong, true}} {
		socket, _, err := open(url, "/echo", options{compress: fault.compress})
		if err != nil {
			return err
		}
		// The server may have gone before all of it was written.
		_ = socket.WriteMessage(fault.kind, fault.message)
		err = endsWith(socket, fault.code)
		socket.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func manyConnectionsAtOnce(url string) error {
	const connections, messages = 50, 20
	failures := make(chan error, connections)
	one := func(number int) error {
		return with(url, options{compress: number%2 == 1}, func(socket *websocket.Conn, _ *http.Response) error {
			message := func(at int) (int, []byte) {
				if at%2 == 1 {
					return text, textOf(31*at + number)
				}
				return binary, bytesOf(17*at + number)
			}
			for at := 0; at < messages; at++ {
				kind, content := message(at)
				if err := socket.WriteMessage(kind, content); err != nil {
					return err
				}
			}
			for at := 0; at < messages; at++ {
				kind, content := message(at)
				if err := receives(socket, kind, content); err != nil {
					return fmt.Errorf("connection %d: %w", number, err)
				}
			}
			return nil
		})
	}
	for number := 0; number < connections; number++ {
		go func(number int) { failures <- one(number) }(number)
	}
	var first error
	for number := 0; number < connections; number++ {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Returns the message of this number from this client: alternately text and bytes.
func relayedMessage(name string, number int) (int, []byte) {
	content := []byte(fmt.Sprintf("%s %d ", name, number) + strings.Repeat("ü€", 7*number%400))
	if number%2 == 1 {
		return text, content
	}
	return binary, content
}

// Sends numbered messages to a room, and expects those of each peer in order.
func relay(url, name string, peers []string) error {
	socket, _, err := open(url, "/room/tower", options{compress: true})
	if err != nil {
		return err
	}
	defer socket.Close()
	// One at a time may write.
	var writing sync.Mutex
	write := func(kind int, content []byte) error {
		writing.Lock()
		defer writing.Unlock()
		return socket.WriteMessage(kind, content)
	}
	here := []byte(name + " here")
	if err := write(text, here); err != nil {
		return err
	}
	isPeer := map[string]bool{}
	for _, peer := range peers {
		isPeer[peer] = true
	}
	nextOf := map[string]int{}
	sent := make(chan error, 1)
	for missing := len(peers) * relayed; missing > 0; {
		kind, content, err := socket.ReadMessage()
		if err != nil {
			return err
		}
		words := strings.SplitN(string(content), " ", 3)
		peer := words[0]
		if !isPeer[peer] {
			return fmt.Errorf("%s is heard, which is no peer", peer)
		}
		expected, known := nextOf[peer]
		if words[1] == "here" {
			if known {
				continue
			}
			nextOf[peer] = 0
			// Whoever came before us has not heard us yet; who came after us has to be told.
			if err := write(text, here); err != nil {
				return err
			}
			if len(nextOf) == len(peers) {
				go func() { sent <- sendAll(write, name) }()
			}
			continue
		}
		expectedKind, expectedContent := relayedMessage(peer, expected)
		if !known || kind != expectedKind || !bytes.Equal(content, expectedContent) {
			return fmt.Errorf("%s: %d expected, %.40q came", peer, expected, content)
		}
		nextOf[peer]++
		missing--
	}
	if err := <-sent; err != nil {
		return err
	}
	return closeWith(socket, websocket.CloseNormalClosure, "")
}

func sendAll(write func(int, []byte) error, name string) error {
	for number := 0; number < relayed; number++ {
		if err := write(relayedMessage(name, number)); err != nil {
			return err
		}
	}
	return nil
}

func goodbye(url string) error {
	socket, _, err := open(url, "/echo", options{})
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := echoes(socket, text, []byte("hello")); err != nil {
		return err
	}
	fmt.Println("ready")
	return endsWith(socket, websocket.CloseGoingAway)
}

func run(name string, test func() error) {
	if err := test(); err != nil {
		fmt.Printf("test %s ... FAILED: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("test %s ... ok\n", name)
}

func main() {
	what, url, names := os.Args[1], os.Args[2], os.Args[3:]
	switch what {
	case "alone":
		for _, test := range []struct {
			name string
			run  func(string) error
		}{
			{"handshake_without_compression", handshakeWithoutCompression},
			{"handshake_with_compression", handshakeWithCompression},
			{"no_subprotocol_is_chosen", noSubprotocolIsChosen},
			{"another_origin_is_refused", anotherOriginIsRefused},
			{"text_comes_back", comesBack(text, textOf, false)},
			{"binary_comes_back", comesBack(binary, bytesOf, false)},
			{"compressed_text_comes_back", comesBack(text, textOf, true)},
			{"compressed_binary_comes_back", comesBack(binary, bytesOf, true)},
			{"fragments_are_joined", fragmentsAreJoined},
			{"pings_are_answered", pingsAreAnswered},
			{"closing_codes_come_back", closingCodesComeBack},
			{"faults_close_with_their_code", faultsCloseWithTheirCode},
			{"many_connections_at_once", manyConnectionsAtOnce},
		} {
			run(test.name, func() error { return test.run(url) })
		}
	case "relay":
		run("a_room_hears_everybody_in_order", func() error { return relay(url, names[0], names[1:]) })
	case "goodbye":
		run("a_stop_says_goodbye", func() error { return goodbye(url) })
	case "serve":
		serve(url, names)
	default:
		fmt.Fprintln(os.Stderr, "there is no", what)
		os.Exit(2)
	}
}
