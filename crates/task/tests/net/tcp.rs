//! TCP.

use std::{
    future::{Future, poll_fn},
    io::{ErrorKind, Write},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use windlass_task::{
    JoinSet,
    net::{TcpListener, TcpStream},
    spawn, yield_now,
};

use crate::{
    scenarios::Build,
    tools::{any, both, connected, poll_now, run, turns},
};

/// An address at which nothing listens, for as long as the socket lives.
fn refusing() -> (std::net::TcpListener, SocketAddr) {
    // Bound, and not listening: connections are refused, and no other test gets the port.
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    let socket = std::net::TcpListener::from(socket);
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn a_refused_connect_is_an_error(build: Build) {
    run(build, async {
        let (_bound, address) = refusing();
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = TcpStream::connect(any(address)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "by an event");
        let none: [SocketAddr; 0] = [];
        let error = TcpStream::connect(none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

/// A connect to the loopback may be ready at once, and is an operation of its poll then.
fn a_task_that_connects_in_a_loop_returns_to_the_executor(build: Build) {
    run(build, async {
        let (_bound, refused) = refusing();
        let connects = async {
            for _ in 0..100 {
                TcpStream::connect(refused).await.unwrap_err();
            }
        };
        let mut connects = std::pin::pin!(connects);
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            connects.as_mut().poll(context)
        })
        .await;
        assert!(polls > 100 / 32, "{polls} polls");
    });
}

fn the_first_address_that_accepts_is_used(build: Build) {
    run(build, async {
        let (_bound, refused) = refusing();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let error = TcpListener::bind(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")));
        let stream = TcpStream::connect(&[refused, address, refused][..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        let stream = TcpStream::connect(&[any(refused), any(address)][..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        let error = TcpStream::connect(vec![refused, refused]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

fn many_connections_are_accepted(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn(async move {
            let mut tasks = JoinSet::new();
            for _ in 0..100 {
                let (mut stream, _) = listener.accept().await.unwrap();
                tasks.spawn(async move {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).await.unwrap();
                    stream.write_all(&byte).await.unwrap();
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        });
        let mut clients = JoinSet::new();
        for number in 0..100_u8 {
            clients.spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&[number]).await.unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).await.unwrap();
                assert_eq!(byte, [number]);
            });
        }
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
        server.await.unwrap();
    });
}

fn two_tasks_may_accept_from_one_listener(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (first, second) = both(both(listener.accept(), listener.accept()), async {
            (TcpStream::connect(address).await, TcpStream::connect(address).await)
        })
        .await;
        assert_ne!(first.0.unwrap().1, first.1.unwrap().1);
        second.0.unwrap();
        second.1.unwrap();
    });
}

fn peeking_removes_nothing_and_clears_nothing(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected().await;
        client.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 16];
        for _ in 0..3 {
            // A short result each time.
            assert_eq!(server.peek(&mut buffer).await.unwrap(), 5);
        }
        assert_eq!(server.peek(&mut []).await.unwrap(), 0);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 5);
        assert!(poll_now(&mut Box::pin(server.peek(&mut buffer))).is_pending());
        drop(client);
        assert_eq!(server.peek(&mut buffer).await.unwrap(), 0);
    });
}

fn request_and_response_make_no_read_that_would_block(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected().await;
        let echo = spawn(async move {
            let mut buffer = [0; 256];
            loop {
                match server.read(&mut buffer).await.unwrap() {
                    0 => break server.would_block_count(),
                    count => server.write_all(&buffer[..count]).await.unwrap(),
                }
            }
        });
        let mut buffer = [0; 256];
        for _ in 0..100 {
            client.write_all(&[1; 64]).await.unwrap();
            assert_eq!(client.read(&mut buffer).await.unwrap(), 64);
        }
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
        assert_eq!((client.would_block_count(), echo.await.unwrap()), (0, 0));
    });
}

fn a_buffer_that_is_filled_exactly_says_nothing(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected().await;
        let mut buffer = [0; 8];
        for _ in 0..3 {
            client.write_all(b"12345678").await.unwrap();
            assert_eq!(server.read(&mut buffer).await.unwrap(), 8);
        }
        // Two edges before the read: the first read fills the buffer, and the rest is not lost.
        client.write_all(b"12345678abc").await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 8);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 3);
    });
}

fn options_are_set(build: Build) {
    run(build, async {
        let (client, server) = connected().await;
        client.set_nodelay(true).unwrap();
        assert!(client.nodelay().unwrap() && !server.nodelay().unwrap());
        client.set_linger(Some(Duration::from_secs(7))).unwrap();
        assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(7)));
        client.set_linger(None).unwrap();
        assert_eq!(client.linger().unwrap(), None);
        client.set_keepalive(Some((Duration::from_secs(9), Duration::from_secs(3)))).unwrap();
        assert!(client.keepalive().unwrap());
        client.set_ttl(33).unwrap();
        assert_eq!(client.ttl().unwrap(), 33);
        assert!(client.take_error().unwrap().is_none());
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    });
}

fn shutdown_ends_a_waiting_read(build: Build) {
    run(build, async {
        let (client, server) = connected().await;
        let (mut read, write) = server.into_split();
        let reader = spawn(async move { read.read(&mut [0; 1]).await });
        turns().await;
        write.stream().shutdown_now(Shutdown::Both).unwrap();
        assert_eq!(reader.await.unwrap().unwrap(), 0);
        drop(client);
    });
}

fn a_reset_is_an_error_once(build: Build) {
    run(build, async {
        let (client, mut server) = connected().await;
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let error = server.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

fn sockets_of_the_standard_library_are_taken_over_and_given_back(build: Build) {
    run(build, async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"early").unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::from_std(server.into_std().unwrap()).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(server.read(&mut buffer).await.unwrap(), 5);
        client.write_all(b"late").unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 4);
        let listener = listener.into_std();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

fn a_socket_that_is_always_ready_does_not_starve_the_others(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected().await;
        client.write_all(&[0; 4096]).await.unwrap();
        let count = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = std::rc::Rc::clone(&count);
        let other = spawn(async move {
            while counted.get() < 4096 {
                yield_now().await;
            }
        });
        let greedy = spawn(async move {
            for _ in 0..4096 {
                server.read_exact(&mut [0; 1]).await.unwrap();
                count.set(count.get() + 1);
                assert!(count.get() < 4096 || windlass_task::stats().unwrap().polls > 128);
            }
        });
        greedy.await.unwrap();
        other.await.unwrap();
        assert!(windlass_task::stats().unwrap().budget_exhausted >= 4096 / 32 - 1);
    });
}

scenarios! {
    a_refused_connect_is_an_error,
    a_task_that_connects_in_a_loop_returns_to_the_executor,
    the_first_address_that_accepts_is_used,
    many_connections_are_accepted,
    two_tasks_may_accept_from_one_listener,
    peeking_removes_nothing_and_clears_nothing,
    request_and_response_make_no_read_that_would_block,
    a_buffer_that_is_filled_exactly_says_nothing,
    options_are_set,
    shutdown_ends_a_waiting_read,
    a_reset_is_an_error_once,
    sockets_of_the_standard_library_are_taken_over_and_given_back,
    a_socket_that_is_always_ready_does_not_starve_the_others,
}
