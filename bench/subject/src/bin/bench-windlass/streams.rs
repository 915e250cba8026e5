//! Streams to which other code than their handlers sends.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use windlass::stream::{Input, Stream, StreamHandler, StreamOptions};
use windlass::{Key, Reactor};
use windlass_bench_driver::Error;
use windlass_bench_driver::streams::StreamSubject;

use crate::backend;

pub(crate) struct Streams {
    reactor: Reactor,
    keys: Vec<Key>,
}

/// Nothing is sent to the streams.
struct Silent;

impl StreamHandler for Silent {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

impl StreamSubject for Streams {
    fn new(backend: &str, sockets: Vec<UnixStream>) -> Result<Self, Error> {
        let mut reactor = Reactor::builder().backend(backend::parse(backend)?).build()?;
        let mut keys = Vec::new();
        for socket in sockets {
            let key = StreamOptions::new().register(socket, Silent, &mut reactor);
            keys.push(key.map_err(std::io::Error::from)?);
        }
        Ok(Self { reactor, keys })
    }

    fn send_to_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for key in &self.keys {
            self.reactor.stream(*key)?.send(bytes).map_err(|_| "a stream has rejected bytes")?;
        }
        self.reactor.run_once(Duration::ZERO)?;
        Ok(())
    }
}
