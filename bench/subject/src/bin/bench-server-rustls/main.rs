//! rustls in a hand-written loop on epoll(7): what a WebSocket server with TLS costs at least. It
//! has no validation, no limits, no timers and no Close frames, and it trusts its client.
//!
//! It uses the buffered connections of rustls, as most programs do.

#![deny(unsafe_code)]

#[path = "../bench-server-floor/wait.rs"]
mod wait;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::epoll;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ServerConfig, ServerConnection};
use windlass_bench_driver::server::{self, Settings, announce};
use windlass_bench_driver::tls::{CERTIFICATE, PRIVATE_KEY};
use windlass_bench_driver::{Error, locked_version};
use windlass_bench_subject::floor::{
    self, BUFFER_BYTES,
    conn_table::Connection,
    frames::{self, Echoed, Output},
    handshake,
};

fn main() -> ExitCode {
    server::run(serve)
}

/// A connection, plain if the client of this case wants no TLS.
struct Conn {
    socket: TcpStream,
    tls: Option<ServerConnection>,
    /// The beginning of an incomplete request or frame.
    partial: Vec<u8>,
    /// The role of the connection.
    state: Connection,
}

struct Server {
    settings: Settings,
    config: Arc<ServerConfig>,
    epoll: OwnedFd,
    connections: Vec<Option<Conn>>,
    buffer: Vec<u8>,
    output: Output,
}

fn config() -> Result<Arc<ServerConfig>, Error> {
    let chain = vec![CertificateDer::from_pem_file(CERTIFICATE)?];
    let key = PrivateKeyDer::from_pem_file(PRIVATE_KEY)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    Ok(Arc::new(config))
}

fn serve(settings: Settings) -> Result<(), Error> {
    let listener = floor::listen()?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let listening = listener.as_raw_fd() as usize;
    let data = epoll::EventData::new_u64(listening as u64);
    epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
    let version = locked_version(include_str!("../../../../../Cargo.lock"), "rustls");
    announce(listener.local_addr()?, &version);
    let mut server = Server {
        settings,
        config: config()?,
        epoll,
        connections: Vec::new(),
        buffer: vec![0; BUFFER_BYTES],
        output: Output::new(BUFFER_BYTES),
    };
    let mut events = Vec::with_capacity(1024);
    loop {
        wait::wait(&server.epoll, &mut events)?;
        for &epoll::Event { data, .. } in &events {
            let fd = data.u64() as usize;
            if fd == listening {
                while let Ok((socket, _)) = listener.accept() {
                    server.accept(socket)?;
                }
            } else if !server.ready(fd)? {
                server.connections[fd] = None;
            }
        }
    }
}

impl Server {
    fn accept(&mut self, socket: TcpStream) -> Result<(), Error> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd() as usize;
        let data = epoll::EventData::new_u64(fd as u64);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        let tls = match self.settings.tls {
            true => {
                let mut tls = ServerConnection::new(Arc::clone(&self.config))?;
                // It is flushed after each answer.
                tls.set_buffer_limit(None);
                Some(tls)
            }
            false => None,
        };
        if self.connections.len() <= fd {
            self.connections.resize_with(fd + 1, || None);
        }
        let state = Connection::new(socket.try_clone()?.into());
        self.connections[fd] = Some(Conn { socket, tls, partial: Vec::new(), state });
        Ok(())
    }

    /// Reads, answers, and writes. Returns whether the connection goes on.
    fn ready(&mut self, fd: usize) -> Result<bool, Error> {
        let Some(Some(conn)) = self.connections.get_mut(fd) else { return Ok(true) };
        let kept = conn.partial.len();
        self.buffer[..kept].copy_from_slice(&conn.partial);
        conn.partial.clear();
        let count = match conn.read(&mut self.buffer[kept..]) {
            Ok(Some(count)) => count,
            Ok(None) => return Ok(false),
            Err(_) => return Ok(false),
        };
        let mut received = 0..kept + count;
        if conn.state.role == floor::conn_table::Role::Opening {
            let bytes = &self.buffer[received.clone()];
            received.start =
                handshake::respond(&mut conn.state, &self.settings, bytes, &mut self.output);
            conn.write(self.output.bytes());
        } else {
            match frames::echo(&mut self.buffer[received.clone()], &mut self.output) {
                Echoed::InPlace(range) => {
                    conn.write(&self.buffer[range]);
                    received.start = received.end;
                }
                Echoed::InOutput { used } => {
                    received.start += used;
                    conn.write(self.output.bytes());
                }
            }
        }
        self.output.clear();
        conn.partial.extend_from_slice(&self.buffer[received]);
        conn.flush()
    }
}

impl Conn {
    /// Reads what the socket has to the front of a buffer. `None` at its end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let Some(tls) = &mut self.tls else {
            return Ok(Some(self.socket.read(buffer)?).filter(|&count| count > 0));
        };
        let mut plain = 0;
        loop {
            match tls.read_tls(&mut self.socket) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(plain)),
                Err(error) => return Err(error.into()),
            }
            let state = tls.process_new_packets()?;
            let come = state.plaintext_bytes_to_read();
            tls.reader().read_exact(&mut buffer[plain..plain + come])?;
            plain += come;
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let sent = match &mut self.tls {
            Some(tls) => tls.writer().write_all(bytes),
            None => self.socket.write_all(bytes),
        };
        // The end of the connection is read later. A plain one has little in flight.
        let _ = sent;
    }

    /// Sends the records. The workloads fit into the socket's buffer.
    fn flush(&mut self) -> Result<bool, Error> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err("the client reads too little".into());
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}
