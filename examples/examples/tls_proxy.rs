//! A proxy that ends TLS and forwards the bytes to a plain server, on streams of the reactor.
//!
//! `cargo run --example tls_proxy -- CERTIFICATE.pem KEY.pem 127.0.0.1:9016 127.0.0.1:80`
//!
//! It shows:
//! - `with_tls` gives a listener the sessions of `windlass-tls`. Handlers see plaintext.
//! - One state with several members: a group has the listener, the connections that it accepts, and
//!   those to the server, which join it later. A timer outside of it borrows the state.
//! - Back-pressure: a stream above its high watermark pauses the other one.
//! - `finish` ends one direction: by `close_notify` to the client, by a FIN to the server. A client
//!   that leaves without `close_notify` may have been cut off, so the server gets a reset.

use std::{collections::BTreeMap, error::Error, io, net::SocketAddr, sync::Arc, time::Duration};

use windlass::stream::{Connector, ListenOptions, Listener, StreamOptions};
use windlass::stream::{DisconnectReason, Input, MemberStreamHandler, Stream};
use windlass::{Group, GroupKey, Key, Reactor, Turn};
use windlass_tls::TlsAcceptor;

/// The watermarks of the output of each stream.
const OPTIONS: StreamOptions = StreamOptions::new().watermarks(64 << 10, 256 << 10);

/// The state of the group.
struct Proxy {
    server: SocketAddr,
    group: Option<GroupKey<Proxy>>,
    /// The two streams of each connection, each with the key of the other one.
    others: BTreeMap<Key, Key>,
}

impl Proxy {
    /// Begins to connect to the server, with a stream that joins the group.
    fn connect(&self, turn: &mut Turn<'_>) -> io::Result<Key> {
        let group = turn.group(self.group.expect("it is set before the reactor runs"))?;
        let connector = Connector::tcp(self.server).stream(OPTIONS);
        Ok(group.connect(connector, Side).register_into(turn)?.members[0])
    }

    /// Calls a function on the other stream of a connection, if it is still open.
    fn with_other(&self, key: Key, mut turn: Turn<'_>, act: impl FnOnce(&mut Stream<'_>)) {
        if let Some(mut other) = self.others.get(&key).and_then(|key| turn.stream(*key).ok()) {
            act(&mut other);
        }
    }
}

/// One stream of a connection. Both handle data alike.
struct Side;

impl MemberStreamHandler<Proxy> for Side {
    fn on_open(&mut self, proxy: &mut Proxy, stream: &mut Stream<'_>) {
        let key = stream.key();
        if proxy.others.contains_key(&key) {
            // The connection to the server is established: the client may send.
            return proxy.with_other(key, stream.turn(), |client| client.resume());
        }
        stream.pause();
        match proxy.connect(&mut stream.turn()) {
            Ok(server) => proxy.others.extend([(key, server), (server, key)]),
            Err(_) => stream.abort(),
        }
    }

    fn on_data(&mut self, proxy: &mut Proxy, stream: &mut Stream<'_>, input: Input<'_>) {
        let (key, mut is_sent) = (stream.key(), false);
        proxy.with_other(key, stream.turn(), |other| is_sent = other.send(&input).is_ok());
        if !is_sent {
            // These bytes are lost, and the peer must learn of it.
            stream.abort();
        }
    }

    fn on_full(&mut self, proxy: &mut Proxy, stream: &mut Stream<'_>) {
        proxy.with_other(stream.key(), stream.turn(), |other| other.pause());
    }

    fn on_drained(&mut self, proxy: &mut Proxy, stream: &mut Stream<'_>) {
        proxy.with_other(stream.key(), stream.turn(), |other| other.resume());
    }

    fn on_end(&mut self, proxy: &mut Proxy, stream: &mut Stream<'_>) {
        proxy.with_other(stream.key(), stream.turn(), |other| other.finish());
    }

    fn on_close(&mut self, proxy: &mut Proxy, key: Key, reason: DisconnectReason, turn: Turn<'_>) {
        if reason != DisconnectReason::Closed {
            proxy.with_other(key, turn, |other| other.abort());
        }
        proxy.others.remove(&key);
    }
}

fn start(r: &mut Reactor, listener: Listener, server: SocketAddr) -> io::Result<GroupKey<Proxy>> {
    let proxy = Proxy { server, group: None, others: BTreeMap::new() };
    let key = Group::new(proxy).listener(listener, |_, _| Some(Side)).register_into(r)?.group;
    r.group_mut(key).expect("it was just registered").group = Some(key);
    Ok(key)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = windlass_examples::words();
    let [certificate, key, address, server] = &words[..] else {
        return Err("usage: tls_proxy CERTIFICATE.pem KEY.pem ADDRESS SERVER".into());
    };
    let tls = TlsAcceptor::builder().certificate(certificate, key).build()?;
    let listener = ListenOptions::new().stream(OPTIONS).tcp(address.parse()?)?;
    let mut reactor = windlass_examples::builder()?.build()?;
    let group = start(&mut reactor, listener.with_tls(Arc::new(tls)), server.parse()?)?;
    reactor.every_with(Duration::from_secs(10), move |mut turn| {
        let streams = turn.with_group(group, |proxy, _| proxy.others.len());
        println!("{} streams", streams.unwrap_or_default());
    })?;
    Ok(reactor.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind::ConnectionReset, Read as _, Write as _};
    use std::{net::TcpListener, net::TcpStream, sync::mpsc, thread};
    use tokio_rustls::rustls::{
        ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types,
    };

    #[test]
    fn a_slow_server_makes_the_client_wait_and_each_kind_of_end_is_forwarded() {
        let file = |name| {
            format!("{}/../crates/tls/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
        };
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&server, 1 << 16).unwrap();
        let tls = TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"));
        let listener =
            ListenOptions::new().stream(OPTIONS).tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let listener = listener.with_tls(Arc::new(tls.build().unwrap()));
        let group = start(&mut reactor, listener, server.local_addr().unwrap()).unwrap();
        let mut roots = RootCertStore::empty();
        let pem = std::fs::read(file("ca.pem")).unwrap();
        roots.add(pki_types::pem::PemObject::from_pem_slice(&pem).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let config = Arc::new(config);
        let client = thread::spawn(move || {
            let connect = || {
                let name = "localhost".try_into().unwrap();
                let session = ClientConnection::new(Arc::clone(&config), name).unwrap();
                StreamOwned::new(session, TcpStream::connect(address).unwrap())
            };
            let (mut client, sent, mut got) = (connect(), vec![b'x'; 16 << 20], Vec::new());
            client.write_all(&sent).unwrap();
            client.conn.send_close_notify();
            // Without the proxy's `close_notify` this would be an error.
            client.read_to_end(&mut got).unwrap();
            assert!(got == sent);
            let mut client = connect();
            client.read_exact(&mut [0]).unwrap();
            client.write_all(b"half").unwrap();
        });
        let (is_full, full) = mpsc::channel();
        let stop = reactor.stop_handle();
        let serve = move || {
            let (mut peer, mut got) = (server.accept().unwrap().0, Vec::new());
            full.recv().unwrap();
            peer.read_to_end(&mut got).unwrap();
            peer.write_all(&got).unwrap();
            drop(peer);
            let mut peer = server.accept().unwrap().0;
            peer.write_all(b"!").unwrap();
            assert_eq!(peer.read_to_end(&mut got).unwrap_err().kind(), ConnectionReset);
        };
        let server = thread::spawn(move || {
            let outcome = thread::spawn(serve).join();
            stop.stop();
            outcome.unwrap();
        });
        let measure = move |mut turn: Turn<'_>| {
            let others = turn.with_group(group, |proxy, _| proxy.others.clone()).unwrap();
            for (key, other) in others {
                let Ok(stream) = turn.stream(key) else { continue };
                assert!(stream.buffered() < 5 << 20, "the client does not wait");
                if stream.is_full() && turn.stream(other).is_ok_and(|other| other.is_paused()) {
                    _ = is_full.send(());
                }
            }
        };
        reactor.every_with(Duration::from_millis(1), measure).unwrap();
        reactor.run().unwrap();
        client.join().unwrap();
        server.join().unwrap();
    }
}
