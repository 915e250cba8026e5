//! The memory of an idle connection. The allocator counts for each thread, and the server's thread
//! has no client.

use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use windlass::{Backend, Reactor};
use windlass_http::HttpServer;
use windlass_task::{Executor, net::TcpListener, spawn, time::sleep};
use windlass_testkit::alloc::{Counting, bytes_of_thread, signed};

/// What an idle connection may hold. hyper alone needs more than 17,000 bytes.
const IDLE_MAX: usize = 2600;

const CONNECTIONS: usize = 64;

/// The longest time until buffers are free, of which the server is told a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(30);
const FREED_AFTER: Duration = Duration::from_millis(100);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes for each idle connection, at most `most` if they become so few in time.
fn bytes(backend: Backend, server: HttpServer, most: usize) -> usize {
    let reactor = Reactor::builder().backend(backend);
    let mut executor = Executor::builder().reactor(reactor).build().unwrap();
    executor.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let hello = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(String::from("hello")))
        });
        spawn(server.serve(listener, hello)).detach();
        let (order, orders) = mpsc::channel();
        let (done, dones) = mpsc::channel();
        // Each order is a set of connections.
        let clients = thread::spawn(move || {
            let mut peers = Vec::new();
            for () in orders {
                for _ in 0..CONNECTIONS {
                    let mut peer = TcpStream::connect(address).unwrap();
                    peer.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
                    let mut answer = Vec::new();
                    while !answer.ends_with(b"hello") {
                        let mut byte = [0];
                        peer.read_exact(&mut byte).unwrap();
                        answer.push(byte[0]);
                    }
                    peers.push(peer);
                }
                done.send(()).unwrap();
            }
        });
        let mut counts = Vec::new();
        for _ in 0..4 {
            let before = bytes_of_thread();
            order.send(()).unwrap();
            while dones.try_recv().is_err() {
                sleep(Duration::from_millis(1)).await;
            }
            // The first set also makes what all connections share.
            let mut waited =
                if counts.is_empty() { PATIENCE - 3 * FREED_AFTER } else { FREED_AFTER };
            while bytes_of_thread() > before + signed(CONNECTIONS * most) && waited < PATIENCE {
                sleep(FREED_AFTER).await;
                waited += FREED_AFTER;
            }
            counts.push(bytes_of_thread());
        }
        drop(order);
        clients.join().unwrap();
        usize::try_from(counts[3] - counts[2]).unwrap() / CONNECTIONS
    })
}

#[test]
fn an_idle_connection_has_no_buffers() {
    for backend in [Backend::Epoll, Backend::Uring, Backend::Poll] {
        if Reactor::builder().backend(backend).build().is_err() {
            println!("{backend:?}: not to be had here");
            continue;
        }
        let kept = HttpServer::new().idle_buffers_timeout(Duration::MAX);
        let kept = bytes(backend, kept, usize::MAX >> 16);
        let freed = HttpServer::new().idle_buffers_timeout(FREED_AFTER);
        let freed = bytes(backend, freed, IDLE_MAX);
        println!("{backend:?}: {freed} bytes, with hyper's buffers {kept}");
        assert!(freed <= IDLE_MAX, "{freed} bytes on {backend:?}");
        assert!(kept > 16 << 10, "{kept} bytes on {backend:?}");
    }
}
