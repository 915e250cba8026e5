// The workloads of the suites `latency`, `tasks` and `http` as coroutines of Asio, on one thread
// unless the case has several.
// They are those of `bench/driver/src/tasks/`, with the same messages.

#include <array>
#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <strings.h>
#include <thread>
#include <vector>

#include "../../counted.hpp"

using asio::awaitable;
using asio::detached;
using asio::use_awaitable;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Timer = asio::steady_timer;

extern "C" {
// Records a latency.
void windlass_bench_record(const void *laps, uint64_t ns);
void windlass_bench_start(const void *laps);
void windlass_bench_stop(const void *laps, uint64_t units);
void windlass_bench_set(const void *laps, uint64_t ns, uint64_t units);
// The handler of a loop.
bool windlass_bench_woken(void *handler);
// Keeps the calling thread off the processor of the client.
void windlass_bench_pin_thread();
}

namespace {

constexpr std::size_t kMessage = 64, kRoom = 1024;
constexpr uint64_t kWarm = 32, kWarmConnections = 64;

uint64_t ns_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

struct Loop {
    // One thread, so no locks.
    asio::io_context context{1};
    std::vector<std::unique_ptr<Timer>> live;

    explicit Loop(std::size_t timers) {
        for (std::size_t i = 0; i < timers; i++) {
            live.push_back(std::make_unique<Timer>(context));
            live.back()->expires_after(std::chrono::hours(1) + std::chrono::milliseconds(i));
            live.back()->async_wait([](asio::error_code) {});
        }
    }
    ~Loop() { live.clear(); }

    // Runs until the stop by the root; the live timers alone would run for an hour.
    void run(awaitable<void> root) {
        std::exception_ptr error;
        bool done = false;
        asio::co_spawn(context, std::move(root), [&](std::exception_ptr e) {
            error = e;
            done = true;
        });
        context.restart();
        while (!done && context.run_one()) {
        }
        if (error) std::rethrow_exception(error);
        if (!done) throw std::runtime_error("the context ran dry");
    }
};

struct End {
    tcp::socket socket;
    std::array<char, kMessage> sent{};
    std::array<char, kRoom> room{};
    std::size_t room_bytes = kRoom;

    explicit End(tcp::socket s) : socket(std::move(s)) { socket.set_option(tcp::no_delay(true)); }

    awaitable<void> send(uint64_t number) {
        std::memcpy(sent.data(), &number, 8);
        co_await asio::async_write(socket, asio::buffer(sent), use_awaitable);
    }
    // Returns false at the end of the stream.
    awaitable<bool> receive(uint64_t &number) {
        auto [error, length] = co_await socket.async_read_some(
            asio::buffer(room, room_bytes), asio::experimental::as_tuple(use_awaitable));
        if (error == asio::error::eof || error == asio::error::connection_reset) co_return false;
        if (error) throw std::system_error(error);
        if (length != kMessage) throw std::runtime_error("a message came in parts");
        std::memcpy(&number, room.data(), 8);
        co_return true;
    }
};

// A counter that a coroutine waits for.
struct Left {
    std::size_t count;
    Timer timer;
    Left(asio::io_context &context, std::size_t n) : count(n), timer(context, Clock::time_point::max()) {}
    void one_less() {
        if (--count == 0) timer.cancel();
    }
    awaitable<void> none() {
        if (count != 0)
            co_await timer.async_wait(asio::experimental::as_tuple(use_awaitable));
    }
};

awaitable<void> echo(std::shared_ptr<End> server, Left &left) {
    uint64_t number;
    while (co_await server->receive(number)) co_await server->send(number);
    left.one_less();
}

struct PingPong {
    const void *laps;
    std::size_t cold, unfinished;
    uint64_t each, messages;
    Timer warm;
};

awaitable<void> exchange(End &client, End *server, uint64_t from, uint64_t to, const void *laps) {
    auto lap = Clock::now();
    for (uint64_t number = from; number < to; number++) {
        uint64_t received;
        co_await client.send(number);
        if (server) {
            if (!co_await server->receive(received)) throw std::runtime_error("a stream ended");
            co_await server->send(received);
        }
        if (!co_await client.receive(received) || received != number)
            throw std::runtime_error("another message came back");
        if (laps) {
            auto now = Clock::now();
            windlass_bench_record(laps, std::chrono::nanoseconds(now - lap).count());
            lap = now;
        }
    }
}

awaitable<void> pair(std::shared_ptr<End> client, std::shared_ptr<End> server, PingPong &all, Left &left) {
    co_await exchange(*client, server.get(), 0, kWarm, nullptr);
    if (--all.cold == 0) {
        windlass_bench_start(all.laps);
        all.warm.cancel();
    } else {
        co_await all.warm.async_wait(asio::experimental::as_tuple(use_awaitable));
    }
    co_await exchange(*client, server.get(), kWarm, kWarm + all.each, all.laps);
    if (--all.unfinished == 0) windlass_bench_stop(all.laps, all.messages);
    left.one_less();
}

awaitable<void> ping_pong(asio::io_context &context, std::size_t pairs, uint64_t flags, uint64_t rounds, const void *laps) {
    bool own_task = flags & 1, exact_reads = flags & 2;
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    uint64_t each = (rounds + pairs - 1) / pairs;
    PingPong all{laps, pairs, pairs, each, each * pairs, Timer(context, Clock::time_point::max())};
    Left clients(context, pairs), echoes(context, own_task ? pairs : 0);
    std::exception_ptr failed;
    for (std::size_t i = 0; i < pairs; i++) {
        tcp::socket socket(context);
        co_await socket.async_connect(acceptor.local_endpoint(), use_awaitable);
        auto client = std::make_shared<End>(std::move(socket));
        auto server = std::make_shared<End>(co_await acceptor.async_accept(use_awaitable));
        if (exact_reads) client->room_bytes = server->room_bytes = kMessage;
        if (own_task) {
            asio::co_spawn(context, echo(server, echoes), detached);
            server = nullptr;
        }
        asio::co_spawn(context, pair(client, server, all, clients), [&](std::exception_ptr e) {
            if (!e) return;
            failed = e;
            clients.count = 1;
            clients.one_less();
        });
    }
    co_await clients.none();
    if (failed) std::rethrow_exception(failed);
    co_await echoes.none();
}

awaitable<void> serve_one(std::shared_ptr<End> server) {
    uint64_t number;
    if (co_await server->receive(number)) co_await server->send(number);
}

awaitable<void> accept_all(tcp::acceptor &acceptor, uint64_t count, Left &left) {
    auto executor = co_await asio::this_coro::executor;
    for (uint64_t i = 0; i < count; i++) {
        auto server = std::make_shared<End>(co_await acceptor.async_accept(use_awaitable));
        asio::co_spawn(executor, serve_one(std::move(server)), detached);
    }
    left.one_less();
}

awaitable<void> connect_all(asio::io_context &context, tcp::endpoint address, uint64_t &todo, Left &left) {
    while (todo > 0) {
        uint64_t number = --todo, received;
        tcp::socket socket(context);
        co_await socket.async_connect(address, use_awaitable);
        socket.set_option(asio::socket_base::linger(true, 0));
        End client(std::move(socket));
        co_await client.send(number);
        if (!co_await client.receive(received) || received != number)
            throw std::runtime_error("another message came back");
    }
    left.one_less();
}

awaitable<void> churn(asio::io_context &context, std::size_t parallel, uint64_t rounds, const void *laps) {
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    for (bool timed : {false, true}) {
        uint64_t count = timed ? rounds : kWarmConnections, todo = count;
        if (timed) windlass_bench_start(laps);
        Left left(context, parallel + 1);
        std::exception_ptr failed;
        auto done = [&](std::exception_ptr e) {
            if (!e) return;
            failed = e;
            left.count = 1;
            left.one_less();
        };
        asio::co_spawn(context, accept_all(acceptor, count, left), done);
        for (std::size_t i = 0; i < parallel; i++)
            asio::co_spawn(context, connect_all(context, acceptor.local_endpoint(), todo, left), done);
        co_await left.none();
        if (failed) std::rethrow_exception(failed);
    }
    windlass_bench_stop(laps, rounds);
}

awaitable<void> self_wake(uint64_t rounds, const void *laps) {
    auto executor = co_await asio::this_coro::executor;
    windlass_bench_start(laps);
    for (uint64_t i = 0; i < rounds; i++) co_await asio::post(executor, use_awaitable);
    windlass_bench_stop(laps, rounds);
}

awaitable<void> add_one(uint64_t &done) {
    done++;
    co_return;
}

awaitable<void> spawning(asio::io_context &context, std::size_t batch, uint64_t rounds, const void *laps) {
    uint64_t done = 0;
    windlass_bench_start(laps);
    for (uint64_t spawned = 0; spawned < rounds; spawned += batch) {
        Left left(context, batch);
        for (std::size_t i = 0; i < batch; i++)
            asio::co_spawn(context, add_one(done), [&](std::exception_ptr) { left.one_less(); });
        co_await left.none();
    }
    windlass_bench_stop(laps, done);
}

awaitable<void> sleep_cancel(asio::io_context &context, bool polled, uint64_t rounds, const void *laps) {
    windlass_bench_start(laps);
    for (uint64_t i = 0; i < rounds; i++) {
        Timer timer(context);
        timer.expires_after(std::chrono::hours(1) + std::chrono::milliseconds(i % 4096));
        if (polled) timer.async_wait([](asio::error_code) {});
        timer.cancel();
        // The cancelled handler runs, as it would in a program.
        if (polled) co_await asio::post(context, use_awaitable);
    }
    windlass_bench_stop(laps, rounds);
}

awaitable<void> short_sleep(asio::io_context &context, uint64_t ns, uint64_t rounds, const void *laps) {
    Timer timer(context);
    windlass_bench_start(laps);
    for (uint64_t i = 0; i < rounds; i++) {
        timer.expires_after(std::chrono::nanoseconds(ns));
        co_await timer.async_wait(use_awaitable);
    }
    windlass_bench_stop(laps, rounds);
}

awaitable<void> sleep_once(asio::io_context &context, uint64_t ns, const void *laps, bool &early, Left &left) {
    auto started = Clock::now();
    Timer timer(context, std::chrono::nanoseconds(ns));
    co_await timer.async_wait(use_awaitable);
    uint64_t took = ns_since(started);
    if (took < ns) early = true;
    windlass_bench_record(laps, took - ns);
    left.one_less();
}

// SplitMix64, as in the driver.
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
};

awaitable<void> many_sleeps(asio::io_context &context, std::size_t count, uint64_t rounds, const void *laps) {
    Random random{11};
    bool early = false;
    uint64_t batches = (rounds + count - 1) / count;
    windlass_bench_start(laps);
    for (uint64_t batch = 0; batch < batches; batch++) {
        Left left(context, count);
        for (std::size_t i = 0; i < count; i++) {
            uint64_t ns = 100000 + random.next() % 900000;
            asio::co_spawn(context, sleep_once(context, ns, laps, early, left), detached);
        }
        co_await left.none();
    }
    windlass_bench_stop(laps, batches * count);
    if (early) throw std::runtime_error("a task woke up early");
}

awaitable<void> sleep_alone(asio::io_context &context, uint64_t us, uint64_t rounds, const void *laps) {
    uint64_t total = 0;
    Timer timer(context);
    for (uint64_t i = 0; i < rounds; i++) {
        auto started = Clock::now();
        timer.expires_after(std::chrono::microseconds(us));
        co_await timer.async_wait(use_awaitable);
        uint64_t took = ns_since(started);
        if (took < us * 1000) throw std::runtime_error("it woke up early");
        windlass_bench_record(laps, took - us * 1000);
        total += took - us * 1000;
    }
    windlass_bench_set(laps, total, rounds);
}

#include "http.hpp"

} // namespace

extern "C" {

Loop *windlass_bench_loop_new(std::size_t timers) { return new Loop(timers); }
void windlass_bench_loop_free(Loop *loop) { delete loop; }

// Returns false if a call failed.
bool windlass_bench_run(Loop *loop, uint32_t kind, uint64_t number, uint64_t flag, uint64_t rounds, const void *laps) {
    auto &context = loop->context;
    try {
        switch (kind) {
        case 0: loop->run(ping_pong(context, number, flag, rounds, laps)); break;
        case 1: loop->run(churn(context, number, rounds, laps)); break;
        case 2: loop->run(self_wake(rounds, laps)); break;
        case 3: loop->run(spawning(context, number, rounds, laps)); break;
        case 4: loop->run(sleep_cancel(context, flag, rounds, laps)); break;
        case 5: loop->run(short_sleep(context, number, rounds, laps)); break;
        case 6: loop->run(many_sleeps(context, number, rounds, laps)); break;
        case 7: loop->run(sleep_alone(context, number, rounds, laps)); break;
        case 8: loop->run(http_both(context, number, rounds, laps)); break;
        case 9: loop->run(http_serve(context, number, static_cast<int>(flag))); break;
        default: return false;
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "asio: %s\n", error.what());
        return false;
    }
    return true;
}

// Serves HTTP on several threads. Returns false if a call failed.
bool windlass_bench_serve_on_threads(std::size_t threads, std::size_t connections, int listener) {
    try {
        HttpThreads(threads, listener).run(threads, connections);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "asio: %s\n", error.what());
        return false;
    }
    return true;
}

// Runs posted handlers until the handler of the loop returns false.
void windlass_bench_loop_run(Loop *loop, void *handler) {
    asio::executor_work_guard<asio::io_context::executor_type> work(
        loop->context.get_executor());
    loop->context.restart();
    for (;;) {
        loop->context.run_one();
        if (!windlass_bench_woken(handler)) return;
    }
}

// From any thread.
void windlass_bench_loop_wake(Loop *loop) {
    asio::post(loop->context, [] {});
}

}
