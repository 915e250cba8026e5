//! What a simulation does not have is an error.

use std::{
    io::{self, ErrorKind},
    os::unix::net,
    time::Duration,
};

use windlass_task::{
    AsyncFd, BlockingReason,
    net::{TcpListener, TcpStream, UnixDatagram, UnixStream, lookup_host},
    spawn_blocking,
};

use crate::tools::{calm, executor};

fn is_unsupported<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
}

#[test]
fn threads_descriptors_and_names_are_unsupported() {
    let sim = calm();
    let program = executor(&sim, 1).simulate(&sim, async {
        let rejected = spawn_blocking(|| ()).err().map(|error| error.reason);
        assert_eq!(rejected, Some(BlockingReason::Unsupported));
        assert!(is_unsupported(lookup_host("a.name:80").await));
        let (one, other) = net::UnixStream::pair().unwrap();
        assert!(is_unsupported(AsyncFd::new(one)));
        assert!(is_unsupported(UnixStream::from_std(other)));
        assert!(is_unsupported(UnixDatagram::unbound()));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        // On a ring, it is registered by the first read.
        let read = match TcpStream::from_std(stream) {
            Ok(mut stream) => stream.read(&mut [0; 1]).await,
            Err(error) => Err(error),
        };
        assert!(is_unsupported(read));
    });
    sim.run_until(|| program.has_ended()).unwrap();
}

#[test]
fn a_simulated_stream_is_not_one_of_the_standard_library() {
    let sim = calm();
    let program = executor(&sim, 1).simulate(&sim, async {
        let listener = TcpListener::bind("127.0.0.1:80").await.unwrap();
        let stream = TcpStream::connect("127.0.0.1:80").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert!(is_unsupported(stream.nodelay()));
        let closure = |_: &std::net::TcpStream| Ok(());
        assert!(is_unsupported(stream.try_io(windlass_task::Direction::Write, closure)));
        let error = stream.into_std().unwrap_err();
        assert_eq!(io::Error::from(error).kind(), ErrorKind::Unsupported);
        // It was in the error.
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(is_unsupported(server.detach().await));
    });
    sim.run_until(|| program.has_ended()).unwrap();
    assert!(sim.elapsed() < Duration::from_secs(1));
}
