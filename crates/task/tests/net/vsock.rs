//! vsock. Tests that need a connection use the loopback, or are skipped.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use windlass::{
    Errno,
    vsock::{self, VsockAddr},
};
use windlass_task::{
    net::{VsockListener, VsockStream},
    spawn,
};
use windlass_testkit::vsock::has_loopback;

use crate::{
    scenarios::Build,
    tools::{both, run},
};

/// A listener, and its address for the loopback. `None` if the kernel lacks vsock.
fn listener(test: &str) -> Option<(VsockListener, VsockAddr)> {
    let anywhere = VsockAddr { cid: VsockAddr::CID_ANY, port: VsockAddr::PORT_ANY };
    let listener = match VsockListener::bind(anywhere) {
        Err(error) if error.to_string().contains(&Errno::AFNOSUPPORT.to_string()) => {
            eprintln!("skipped here: {test}: {error}");
            return None;
        }
        listener => listener.unwrap(),
    };
    let VsockAddr { cid, port } = listener.local_addr().unwrap();
    assert!(cid == VsockAddr::CID_ANY && port != VsockAddr::PORT_ANY);
    Some((listener, VsockAddr { cid: VsockAddr::CID_LOCAL, port }))
}

fn a_listener_has_an_address_that_no_other_gets(build: Build) {
    run(build, async {
        let Some((listener, at)) = listener("vsock::a_listener_has_an_address") else { return };
        let address = VsockAddr { cid: VsockAddr::CID_ANY, ..at };
        let error = VsockListener::bind(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let text = format!("cannot listen on vsock:{address}: ");
        assert!(error.to_string().starts_with(&text), "{error}");
        let again = VsockListener::from_std(listener.into_std()).unwrap();
        assert_eq!(again.local_addr().unwrap(), address);
        vsock::set_buffer_size(&again, 1 << 20).unwrap();
        assert_eq!(vsock::buffer_size(&again).unwrap(), 1 << 20);
    });
}

fn a_connection_without_a_listener_fails_in_time(build: Build) {
    run(build, async {
        let Some((_, at)) = listener("vsock::a_connection_without_a_listener") else { return };
        // Nobody listens there: other tests have ports that are free.
        let at = VsockAddr { port: 1, ..at };
        let begin = Instant::now();
        let longest = Duration::from_millis(100);
        let error = VsockStream::connect_timeout(at, longest).await.unwrap_err();
        // Where no connection succeeds, nobody refuses it either.
        match error.kind() {
            ErrorKind::TimedOut => assert!(begin.elapsed() >= longest),
            kind => assert_eq!(kind, ErrorKind::ConnectionReset),
        }
    });
}

fn bytes_go_both_ways_over_the_loopback(build: Build) {
    if !has_loopback("vsock::bytes_go_both_ways_over_the_loopback") {
        return;
    }
    run(build, async {
        let (listener, at) = listener("vsock").unwrap();
        let (client, accepted) = both(VsockStream::connect(at), listener.accept()).await;
        let (mut client, (mut server, peer)) = (client.unwrap(), accepted.unwrap());
        assert_eq!(client.peer_addr().unwrap(), at);
        assert_eq!(peer, client.local_addr().unwrap());
        // More than the socket's buffer has room for.
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| n.to_le_bytes()[0]).collect();
        let echo = spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            loop {
                match server.read(&mut buffer).await.unwrap() {
                    0 => return server.shutdown().await,
                    count => server.write_all(&buffer[..count]).await.unwrap(),
                }
            }
        });
        let (mut reader, mut writer) = client.split();
        let mut got = vec![0; bytes.len()];
        let (sent, read) = both(writer.write_all(&bytes), reader.read_exact(&mut got)).await;
        sent.unwrap();
        read.unwrap();
        assert!(got == bytes);
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut got).await.unwrap(), 0, "the end");
        echo.await.unwrap().unwrap();
    });
}

scenarios! {
    a_listener_has_an_address_that_no_other_gets,
    a_connection_without_a_listener_fails_in_time,
    bytes_go_both_ways_over_the_loopback,
}
