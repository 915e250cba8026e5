// The mock of the suite `http`, as in `bench/driver/src/http/`. Included by glue.cpp.

constexpr std::string_view kRequest =
    "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";
constexpr std::string_view kResponse =
    "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
constexpr std::string_view kBody = "Hello, World!", kLength = "content-length:";

struct HttpEnd {
    tcp::socket socket;
    std::array<char, 256> room{};
    std::size_t filled = 0;

    explicit HttpEnd(tcp::socket s) : socket(std::move(s)) {
        socket.set_option(tcp::no_delay(true));
    }

    auto read() {
        return socket.async_read_some(
            asio::buffer(room.data() + filled, room.size() - filled),
            asio::experimental::as_tuple(use_awaitable));
    }

    auto write(std::string_view bytes) {
        return asio::async_write(socket, asio::buffer(bytes.data(), bytes.size()), use_awaitable);
    }

    // Returns false at the end of the stream.
    bool received(asio::error_code error, std::size_t length) {
        if (error == asio::error::eof || error == asio::error::connection_reset) return false;
        if (error) throw std::system_error(error);
        filled += length;
        if (filled == room.size()) throw std::runtime_error("a message is too long");
        return true;
    }

    // Returns the length of the head with its empty line; 0 if it has not arrived.
    std::size_t head() const {
        auto end = std::string_view(room.data(), filled).find("\r\n\r\n");
        return end == std::string_view::npos ? 0 : end + 4;
    }

    void take(std::size_t length) {
        filled -= length;
        std::memmove(room.data(), room.data() + length, filled);
    }

    // Takes a request out. Returns false if it has not arrived.
    bool take_request() {
        std::size_t length = head();
        take(length);
        return length != 0;
    }

    // The same for a response, which must be the expected one.
    bool take_response() {
        std::size_t length = head(), body = 0;
        if (length == 0) return false;
        std::string_view text(room.data(), length);
        for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
            auto line = text.substr(at);
            if (line.size() < kLength.size() ||
                strncasecmp(line.data(), kLength.data(), kLength.size()) != 0)
                continue;
            body = std::strtoul(line.data() + kLength.size(), nullptr, 10);
            break;
        }
        if (body != kBody.size() || !text.starts_with("HTTP/1.1 200 "))
            throw std::runtime_error("another response came");
        if (filled < length + body) return false;
        if (std::string_view(room.data() + length, body) != kBody)
            throw std::runtime_error("another body came");
        take(length + body);
        return true;
    }
};

awaitable<void> http_answers(std::shared_ptr<HttpEnd> server) {
    for (;;) {
        auto [error, length] = co_await server->read();
        if (!server->received(error, length)) break;
        if (server->take_request()) {
            co_await server->write(kResponse);
        }
    }
}

awaitable<void> http_connection(std::shared_ptr<HttpEnd> server, Left &left) {
    co_await http_answers(std::move(server));
    left.one_less();
}

awaitable<void> http_requests(HttpEnd &client, uint64_t count, const void *laps) {
    auto lap = Clock::now();
    for (uint64_t i = 0; i < count; i++) {
        co_await client.write(kRequest);
        do {
            auto [error, length] = co_await client.read();
            if (!client.received(error, length)) throw std::runtime_error("a stream ended");
        } while (!client.take_response());
        if (laps) {
            auto now = Clock::now();
            windlass_bench_record(laps, std::chrono::nanoseconds(now - lap).count());
            lap = now;
        }
    }
}

awaitable<void> http_client(std::shared_ptr<HttpEnd> client, PingPong &all, Left &left) {
    co_await http_requests(*client, kWarm, nullptr);
    if (--all.cold == 0) {
        windlass_bench_start(all.laps);
        all.warm.cancel();
    } else {
        co_await all.warm.async_wait(asio::experimental::as_tuple(use_awaitable));
    }
    co_await http_requests(*client, all.each, all.laps);
    if (--all.unfinished == 0) windlass_bench_stop(all.laps, all.messages);
    left.one_less();
}

awaitable<void> http_both(asio::io_context &context, std::size_t connections, uint64_t rounds,
                          const void *laps) {
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    uint64_t each = (rounds + connections - 1) / connections;
    PingPong all{laps, connections, connections, each, each * connections,
                 Timer(context, Clock::time_point::max())};
    Left clients(context, connections), servers(context, connections);
    std::exception_ptr failed;
    for (std::size_t i = 0; i < connections; i++) {
        tcp::socket socket(context);
        co_await socket.async_connect(acceptor.local_endpoint(), use_awaitable);
        auto client = std::make_shared<HttpEnd>(std::move(socket));
        auto server = std::make_shared<HttpEnd>(co_await acceptor.async_accept(use_awaitable));
        asio::co_spawn(context, http_connection(server, servers), detached);
        asio::co_spawn(context, http_client(client, all, clients), [&](std::exception_ptr e) {
            if (!e) return;
            failed = e;
            clients.count = 1;
            clients.one_less();
        });
    }
    co_await clients.none();
    if (failed) std::rethrow_exception(failed);
    co_await servers.none();
}

// Serves connections of another thread until their ends. The descriptor of the listener is closed.
awaitable<void> http_serve(asio::io_context &context, std::size_t connections, int listener) {
    tcp::acceptor acceptor(context, tcp::v4(), listener);
    Left servers(context, connections);
    for (std::size_t i = 0; i < connections; i++) {
        auto server = std::make_shared<HttpEnd>(co_await acceptor.async_accept(use_awaitable));
        asio::co_spawn(context, http_connection(std::move(server), servers), detached);
    }
    co_await servers.none();
}

// The same on several threads with one context, which ends when all connections have ended.
class HttpThreads {
    asio::io_context context;
    tcp::acceptor acceptor;
    std::mutex mutex;
    std::exception_ptr failed;

    auto ended() {
        return [this](std::exception_ptr error) {
            if (!error) return;
            std::lock_guard lock(mutex);
            failed = error;
        };
    }

    awaitable<void> accept(std::size_t connections) {
        for (std::size_t i = 0; i < connections; i++) {
            auto server = std::make_shared<HttpEnd>(co_await acceptor.async_accept(use_awaitable));
            asio::co_spawn(context, http_answers(std::move(server)), ended());
        }
    }

  public:
    // The descriptor of the listener is closed.
    HttpThreads(std::size_t threads, int listener)
        : context(static_cast<int>(threads)), acceptor(context, tcp::v4(), listener) {}

    void run(std::size_t threads, std::size_t connections) {
        asio::co_spawn(context, accept(connections), ended());
        std::vector<std::jthread> running;
        for (std::size_t i = 0; i < threads; i++)
            running.emplace_back([this] {
                windlass_bench_pin_thread();
                context.run();
            });
        running.clear();
        if (failed) std::rethrow_exception(failed);
    }
};
