//! A server returns memory to the system after its connections have ended.

use std::{
    cell::RefCell,
    convert::Infallible,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use windlass_http::HttpServer;
use windlass_task::{Executor, net::TcpListener, spawn, spawn_blocking, time::sleep};
use windlass_testkit::own_process::is_own_process;

/// The descriptors of both sides must not be more than the usual limit of 1024.
const CONNECTIONS: usize = 400;

/// What the head of a request makes hyper allocate. It is less than what the C library maps alone.
const HEAD: usize = 60 << 10;

/// Most of what the connections held must be returned.
const RETURNED_MIN: u64 = (CONNECTIONS * HEAD / 2) as u64;

/// How long the test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Opens the connections. Each has an answer, and then a part of a large head waits.
fn load(address: SocketAddr) -> Vec<TcpStream> {
    let part = format!("GET / HTTP/1.1\r\nHost: here\r\nX: {}", "x".repeat(HEAD));
    let connect = |_| {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut byte = [0];
            peer.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        peer.write_all(part.as_bytes()).unwrap();
        peer
    };
    (0..CONNECTIONS).map(connect).collect()
}

#[test]
#[cfg_attr(not(target_env = "gnu"), ignore = "only glibc can return memory")]
fn memory_returns_to_the_system_after_a_load() {
    if !is_own_process("trim::memory_returns_to_the_system_after_a_load") {
        return;
    }
    let mut executor = Executor::builder().build().unwrap();
    executor.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Each request leaves something behind, so that free memory is between used memory.
        let kept = Rc::new(RefCell::new(Vec::new()));
        let service = service_fn(move |_: Request<Incoming>| {
            kept.borrow_mut().push(Box::new([1_u8; 100]));
            async { Ok::<_, Infallible>(Response::new(String::from("hello"))) }
        });
        let server = HttpServer::new().idle_buffers_timeout(Duration::MAX).trim_memory(true);
        spawn(server.serve(listener, service)).detach();
        let before = resident();
        let peers = spawn_blocking(move || load(address)).unwrap().await.unwrap();
        while resident() < before + RETURNED_MIN {
            sleep(Duration::from_millis(10)).await;
        }
        let loaded = resident();
        thread::spawn(|| drop(peers)).join().unwrap();
        let begin = Instant::now();
        while resident() > loaded - RETURNED_MIN {
            assert!(begin.elapsed() < PATIENCE, "{before}, {loaded}, {}", resident());
            sleep(Duration::from_millis(10)).await;
        }
    });
}
