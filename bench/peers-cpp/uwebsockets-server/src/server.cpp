/* The servers of uWebSockets, like its examples EchoServer and Broadcast, with its own topics. */

#include "App.h"

#include "../../counted.hpp"

extern "C" {
/* Says that one of several threads listens. */
void windlass_bench_worker_listening(int port);
/* Prints the address of the server. */
void windlass_bench_listening(int port);
/* Works for the time of the command line. */
void windlass_bench_work(void);
}

namespace {

struct Nothing {};

const unsigned int MESSAGE_MAX = 16 * 1024 * 1024;

template <typename AnyApp>
typename AnyApp::template WebSocketBehavior<Nothing> behavior(bool deflate) {
    typename AnyApp::template WebSocketBehavior<Nothing> behavior;
    behavior.compression =
        deflate ? uWS::CompressOptions(uWS::SHARED_COMPRESSOR | uWS::SHARED_DECOMPRESSOR) : uWS::DISABLED;
    behavior.maxPayloadLength = MESSAGE_MAX;
    behavior.maxBackpressure = MESSAGE_MAX;
    return behavior;
}

/* The publisher, as in the example. */
uWS::App *broadcaster;

template <typename AnyApp> void listen(AnyApp &app, int ssl) {
    app.listen("127.0.0.1", 0, [ssl](auto *socket) {
        windlass_bench_listening(socket ? us_socket_local_port(ssl, (us_socket_t *) socket) : 0);
    }).run();
}

template <typename AnyApp> void echo_with(AnyApp &&app, bool deflate, bool work, int ssl) {
    auto echo = behavior<std::remove_reference_t<AnyApp>>(deflate);
    if (work) {
        echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) {
            windlass_bench_work();
            ws->send(message, opCode);
        };
    } else if (deflate) {
        echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) { ws->send(message, opCode, true); };
    } else {
        echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) { ws->send(message, opCode); };
    }
    app.template ws<Nothing>("/*", std::move(echo));
    listen(app, ssl);
}

}

/* Without a certificate it does not speak TLS. */
extern "C" void windlass_bench_echo(bool deflate, bool work, const char *certificate, const char *key) {
    if (!certificate) {
        return echo_with(uWS::App(), deflate, work, 0);
    }
#ifdef LIBUS_USE_OPENSSL
    uWS::SocketContextOptions options;
    options.cert_file_name = certificate;
    options.key_file_name = key;
    echo_with(uWS::SSLApp(options), deflate, work, 1);
#else
    (void) key;
    windlass_bench_listening(0);
#endif
}

/* Echoes on this thread, one of several that listen on one port: the kernel distributes the connections. */
extern "C" void windlass_bench_echo_on(int port) {
    uWS::App app;
    auto echo = behavior<uWS::App>(false);
    echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) { ws->send(message, opCode); };
    app.ws<Nothing>("/*", std::move(echo)).listen("127.0.0.1", port, [](auto *socket) {
        windlass_bench_worker_listening(socket ? us_socket_local_port(0, (us_socket_t *) socket) : 0);
    }).run();
}

extern "C" void windlass_bench_broadcast(void) {
    auto publisher = behavior<uWS::App>(false), receiver = behavior<uWS::App>(false);
    publisher.message = [](auto *, std::string_view message, uWS::OpCode opCode) {
        broadcaster->publish("all", message, opCode);
    };
    receiver.open = [](auto *ws) { ws->subscribe("all"); };
    uWS::App app;
    app.ws<Nothing>("/pub", std::move(publisher)).ws<Nothing>("/*", std::move(receiver));
    broadcaster = &app;
    listen(app, 0);
}
