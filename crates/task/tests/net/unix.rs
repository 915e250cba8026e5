//! Unix sockets.

use std::{
    io::ErrorKind,
    os::{linux::net::SocketAddrExt, unix::net::SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
};

use windlass_task::{
    net::{UnixDatagram, UnixListener, UnixStream},
    spawn,
};

use crate::{
    scenarios::Build,
    tools::{both, poll_now, run},
};

/// A name that no other test uses.
fn name() -> SocketAddr {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("windlass-task {} {number}", std::process::id());
    SocketAddr::from_abstract_name(name).unwrap()
}

/// A path that no other test uses. The file is removed at the end.
struct Path(std::path::PathBuf);

impl Path {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-task-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn a_listener_accepts_by_path_and_by_abstract_name(build: Build) {
    run(build, async {
        let path = Path::new();
        let listener = UnixListener::bind(&path.0).unwrap();
        let (client, accepted) = both(UnixStream::connect(&path.0), listener.accept()).await;
        let (mut client, (mut server, peer)) = (client.unwrap(), accepted.unwrap());
        assert!(peer.is_unnamed());
        assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path.0));
        client.write_all(b"hello").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();

        let name = name();
        let listener = UnixListener::bind_addr(&name).unwrap();
        assert_eq!(listener.local_addr().unwrap().as_abstract_name(), name.as_abstract_name());
        UnixStream::connect_addr(&name).await.unwrap();
        listener.accept().await.unwrap();
    });
}

fn the_address_of_a_peer_is_told(build: Build) {
    run(build, async {
        let name = name();
        let listener = UnixListener::bind_addr(&name).unwrap();
        // As long as the standard library allows.
        let mut path = Path::new().0.clone().into_os_string();
        path.push("x".repeat(107 - path.len()));
        let path = Path(path.into());
        let client = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        rustix::net::bind(&client, &rustix::net::SocketAddrUnix::new(&path.0).unwrap()).unwrap();
        let to = rustix::net::SocketAddrUnix::new_abstract_name(name.as_abstract_name().unwrap());
        rustix::net::connect(&client, &to.unwrap()).unwrap();
        // Also of one that has gone.
        drop(client);
        let (_server, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.as_pathname(), Some(&*path.0));
    });
}

fn a_missing_or_silent_listener_is_an_error(build: Build) {
    run(build, async {
        let error = UnixStream::connect(Path::new().0.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = UnixStream::connect_addr(&name()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = UnixListener::bind("").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let path = Path::new();
        let _listener = UnixListener::bind(&path.0).unwrap();
        let error = UnixListener::bind(&path.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let text = format!("cannot listen on unix:{}: ", path.0.display());
        assert!(error.to_string().starts_with(&text), "{error}");
    });
}

fn the_credentials_are_those_of_the_peer(build: Build) {
    run(build, async {
        let (first, second) = UnixStream::pair().unwrap();
        let credentials = first.peer_credentials().unwrap();
        assert_eq!(credentials, second.peer_credentials().unwrap());
        assert_eq!(credentials.pid, std::process::id());
        assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
        assert_eq!(credentials.gid, rustix::process::getegid().as_raw());
    });
}

fn datagrams_are_exchanged_by_pair_by_path_and_by_name(build: Build) {
    run(build, async {
        let (first, second) = UnixDatagram::pair().unwrap();
        first.send(b"one").await.unwrap();
        first.send(b"").await.unwrap();
        first.send(b"three").await.unwrap();
        let mut buffer = [0; 4];
        assert_eq!(second.recv(&mut buffer).await.unwrap(), 3);
        assert_eq!(second.recv(&mut buffer).await.unwrap(), 0, "an empty datagram is one");
        assert_eq!(second.recv(&mut buffer).await.unwrap(), 4, "the rest is cut");
        assert!(poll_now(&mut Box::pin(second.recv(&mut buffer))).is_pending());

        let path = Path::new();
        let receiver = UnixDatagram::bind(&path.0).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(b"abc", &path.0).await.unwrap();
        let (count, from) = receiver.recv_from(&mut buffer).await.unwrap();
        assert!(count == 3 && from.is_unnamed());

        let name = name();
        let receiver = UnixDatagram::bind_addr(&name).unwrap();
        sender.connect_addr(&name).unwrap();
        sender.send(b"de").await.unwrap();
        assert_eq!(receiver.recv(&mut buffer).await.unwrap(), 2);
        assert_eq!(
            sender.peer_addr().unwrap().as_abstract_name(),
            receiver.local_addr().unwrap().as_abstract_name()
        );
    });
}

fn a_full_queue_of_datagrams_stops_the_sender(build: Build) {
    run(build, async {
        let (first, second) = UnixDatagram::pair().unwrap();
        let sender = spawn(async move {
            for number in 0..2000_u32 {
                first.send(&number.to_be_bytes()).await.unwrap();
            }
        });
        for number in 0..2000_u32 {
            let mut buffer = [0; 8];
            assert_eq!(second.recv(&mut buffer).await.unwrap(), 4);
            assert_eq!(buffer[..4], number.to_be_bytes());
        }
        sender.await.unwrap();
    });
}

scenarios! {
    a_listener_accepts_by_path_and_by_abstract_name,
    the_address_of_a_peer_is_told,
    a_missing_or_silent_listener_is_an_error,
    the_credentials_are_those_of_the_peer,
    datagrams_are_exchanged_by_pair_by_path_and_by_name,
    a_full_queue_of_datagrams_stops_the_sender,
}
