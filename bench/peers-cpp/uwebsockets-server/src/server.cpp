/* The servers of uWebSockets, like its examples EchoServer and Broadcast, with its own topics. */

#include <cstdlib>
#include <new>

#include "App.h"

extern "C" {
/* Counts an allocation. */
void windlass_bench_count(void);
/* Prints the address of the server. */
void windlass_bench_listening(int port);
}

void *operator new(size_t bytes) {
    windlass_bench_count();
    void *block = malloc(bytes);
    if (!block) {
        throw std::bad_alloc();
    }
    return block;
}
void *operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void *block) noexcept { free(block); }
void operator delete[](void *block) noexcept { free(block); }
void operator delete(void *block, size_t) noexcept { free(block); }
void operator delete[](void *block, size_t) noexcept { free(block); }

namespace {

struct Nothing {};

const unsigned int MESSAGE_MAX = 16 * 1024 * 1024;

uWS::App::WebSocketBehavior<Nothing> behavior(bool deflate) {
    uWS::App::WebSocketBehavior<Nothing> behavior;
    behavior.compression =
        deflate ? uWS::CompressOptions(uWS::SHARED_COMPRESSOR | uWS::SHARED_DECOMPRESSOR) : uWS::DISABLED;
    behavior.maxPayloadLength = MESSAGE_MAX;
    behavior.maxBackpressure = MESSAGE_MAX;
    return behavior;
}

/* The publisher, as in the example. */
uWS::App *broadcaster;

void listen(uWS::App &app) {
    app.listen("127.0.0.1", 0, [](auto *socket) {
        windlass_bench_listening(socket ? us_socket_local_port(0, (us_socket_t *) socket) : 0);
    }).run();
}

}

extern "C" void windlass_bench_echo(bool deflate) {
    auto echo = behavior(deflate);
    if (deflate) {
        echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) { ws->send(message, opCode, true); };
    } else {
        echo.message = [](auto *ws, std::string_view message, uWS::OpCode opCode) { ws->send(message, opCode); };
    }
    uWS::App app;
    app.ws<Nothing>("/*", std::move(echo));
    listen(app);
}

extern "C" void windlass_bench_broadcast(void) {
    auto publisher = behavior(false), receiver = behavior(false);
    publisher.message = [](auto *, std::string_view message, uWS::OpCode opCode) {
        broadcaster->publish("all", message, opCode);
    };
    receiver.open = [](auto *ws) { ws->subscribe("all"); };
    uWS::App app;
    app.ws<Nothing>("/pub", std::move(publisher)).ws<Nothing>("/*", std::move(receiver));
    broadcaster = &app;
    listen(app);
}
