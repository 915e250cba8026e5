/* The code around the parser of uWebSockets, without its sockets: from WebSocketContext.h
 * (handleFragment), WebSocket.h (send) and AsyncSocket.h (cork, getSendBuffer, uncork). The tests
 * and copies are the same, in the same order. The parts for sockets, topics and the loop are
 * omitted. A send goes to the wire, which is always writable. */

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "WebSocketProtocol.h"
#include "PerMessageDeflate.h"

#define WINDLASS_BENCH_OWN_ALLOCATOR
#include "../../counted.hpp"

extern "C" {
/* The wire: send(2), and sendmsg(2) of a header and a payload. */
void windlass_bench_send(const void *wire, const char *data, size_t length);
void windlass_bench_send2(const void *wire, const char *header, size_t header_length, const char *data, size_t length);
}

namespace {

using uWS::OpCode;
namespace protocol = uWS::protocol;

const unsigned int CORK_BUFFER_SIZE = 16 * 1024;

/* The state that the connections of a loop share. */
struct Loop {
    char corkBuffer[CORK_BUFFER_SIZE];
    unsigned int corkOffset = 0;
};

struct Connection : uWS::WebSocketState<true> {
    std::string fragmentBuffer;
    std::string backPressure;
    Loop *loop;
    const void *wire;
    size_t maxPayloadLength = 16 * 1024 * 1024;
    bool isClosed = false;

    Connection(Loop *loop, const void *wire) : loop(loop), wire(wire) {}

    void uncork() {
        if (loop->corkOffset) {
            windlass_bench_send(wire, loop->corkBuffer, loop->corkOffset);
            loop->corkOffset = 0;
        }
    }

    void send(std::string_view message, OpCode opCode) {
        /* Special path for long sends of non-compressed, non-SSL messages */
        if (message.length() >= 16 * 1024 && backPressure.empty() && loop->corkOffset == 0) {
            char header[10];
            size_t headerLength = protocol::formatMessage<true>(header, nullptr, 0, opCode, message.length(), false, true);
            windlass_bench_send2(wire, header, headerLength, message.data(), message.length());
            return;
        }
        size_t size = protocol::messageFrameSize(message.length());
        if (loop->corkOffset + size < CORK_BUFFER_SIZE) {
            char *buffer = loop->corkBuffer + loop->corkOffset;
            loop->corkOffset += (unsigned int) size;
            protocol::formatMessage<true>(buffer, message.data(), message.length(), opCode, message.length(), false, true);
            return;
        }
        /* Fallback is to use the backpressure as buffer, and copy the cork buffer in front */
        unsigned int corked = loop->corkOffset;
        loop->corkOffset = 0;
        backPressure.resize(corked + size);
        memcpy(backPressure.data(), loop->corkBuffer, corked);
        char *buffer = backPressure.data() + corked;
        protocol::formatMessage<true>(buffer, message.data(), message.length(), opCode, message.length(), false, true);
        /* This is a drain */
        windlass_bench_send(wire, backPressure.data(), backPressure.length());
        backPressure.clear();
    }
};

struct Parser : uWS::WebSocketProtocol<true, Parser> {
    static Connection *connection(void *user) { return (Connection *) user; }

    static bool setCompressed(uWS::WebSocketState<true> *, void *) { return false; }

    static void forceClose(uWS::WebSocketState<true> *, void *user, std::string_view = {}) {
        connection(user)->isClosed = true;
    }

    static bool refusePayloadLength(uint64_t length, uWS::WebSocketState<true> *, void *user) {
        return connection(user)->maxPayloadLength < length;
    }

    /* Returns true on breakage */
    static bool handleFragment(char *data, size_t length, unsigned int remainingBytes, int opCode, bool fin,
                               uWS::WebSocketState<true> *state, void *user) {
        Connection *self = connection(user);
        if (opCode > 2) {
            /* No case has control frames. */
            forceClose(state, user);
            return true;
        }
        /* Did we get everything in one go? */
        if (!remainingBytes && fin && !self->fragmentBuffer.length()) {
            return emit(data, length, opCode, state, user);
        }
        /* Allocate fragment buffer up front first time */
        if (!self->fragmentBuffer.length()) {
            self->fragmentBuffer.reserve(length + remainingBytes);
        }
        /* Fragments forming a big message are not caught until appending them */
        if (refusePayloadLength(length + self->fragmentBuffer.length(), state, user)) {
            forceClose(state, user);
            return true;
        }
        self->fragmentBuffer.append(data, length);
        if (!remainingBytes && fin) {
            if (emit(self->fragmentBuffer.data(), self->fragmentBuffer.length(), opCode, state, user)) {
                return true;
            }
            self->fragmentBuffer.clear();
        }
        return false;
    }

    static bool emit(char *data, size_t length, int opCode, uWS::WebSocketState<true> *state, void *user) {
        if (opCode == 1 && !protocol::isValidUtf8((unsigned char *) data, length)) {
            forceClose(state, user);
            return true;
        }
        connection(user)->send(std::string_view(data, length), (OpCode) opCode);
        return connection(user)->isClosed;
    }

    /* Unmasks as for a whole frame: down over its header. The mask is in front of the payload. */
    template <int HEADER_SIZE>
    static void unmask(char *payload, unsigned int length) {
        unmaskImpreciseCopyMask<HEADER_SIZE>(payload, length);
    }
};

struct Deflate {
    uWS::ZlibContext context;
    uWS::DeflationStream deflation;
    uWS::InflationStream inflation;
    bool reset;

    Deflate(uint16_t compressor, uint16_t decompressor, bool reset)
        : deflation((uWS::CompressOptions) compressor), inflation((uWS::CompressOptions) decompressor), reset(reset) {}
};

}

extern "C" {

size_t windlass_bench_connection_bytes() { return sizeof(Connection); }
size_t windlass_bench_padding_bytes() { return Parser::CONSUME_PRE_PADDING; }

void *windlass_bench_loop_new() { return new Loop(); }
void windlass_bench_loop_free(void *loop) { delete (Loop *) loop; }
void *windlass_bench_connection_new(void *loop, const void *wire) { return new Connection((Loop *) loop, wire); }
void windlass_bench_connection_free(void *connection) { delete (Connection *) connection; }

/* Parses and answers one read. Returns false if the connection was closed for a violation. */
bool windlass_bench_connection_data(void *connection, char *data, unsigned int length) {
    Connection *self = (Connection *) connection;
    Parser::consume(data, length, self, self);
    self->uncork();
    return !self->isClosed;
}

/* Returns the distance by which the payload has moved to the front. */
unsigned int windlass_bench_unmask(char *payload, size_t length, const char *mask) {
    memcpy(payload - 4, mask, 4);
    if (length < 126) {
        Parser::unmask<6>(payload, (unsigned int) length);
        return 6;
    }
    if (length <= UINT16_MAX) {
        Parser::unmask<8>(payload, (unsigned int) length);
        return 8;
    }
    Parser::unmask<14>(payload, (unsigned int) length);
    return 14;
}

bool windlass_bench_is_valid_utf8(const char *text, size_t length) {
    return protocol::isValidUtf8((unsigned char *) text, length);
}

void *windlass_bench_deflate_new(uint16_t compressor, uint16_t decompressor, bool reset) {
    return new Deflate(compressor, decompressor, reset);
}
void windlass_bench_deflate_free(void *deflate) { delete (Deflate *) deflate; }

size_t windlass_bench_compress(void *deflate, const char *plain, size_t length, const char **out) {
    Deflate *self = (Deflate *) deflate;
    std::string_view compressed = self->deflation.deflate(&self->context, {plain, length}, self->reset);
    *out = compressed.data();
    return compressed.length();
}

bool windlass_bench_inflate(void *deflate, char *compressed, size_t length, const char **out, size_t *out_length) {
    Deflate *self = (Deflate *) deflate;
    auto plain = self->inflation.inflate(&self->context, {compressed, length}, 16 * 1024 * 1024, self->reset);
    if (!plain.has_value()) {
        return false;
    }
    *out = plain->data();
    *out_length = plain->length();
    return true;
}

}
