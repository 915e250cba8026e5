//! A connection of HTTP/2: over TLS by ALPN, or in cleartext with prior knowledge (RFC 9113
//! sections 3.2 and 3.3).

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
};

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use windlass::stream::TlsFailure;
use windlass_task::{
    net::{TcpStream, UnixStream},
    rt::WindlassExecutor,
    spawn,
    time::timeout,
};
use windlass_websocket::{
    ClientRequest, Config, DeflateConfig, WebSocket,
    http2::{self, client_settings, watch},
    upgrade::{UpgradeError, UpgradedIo},
};

use super::{Change, Shared, chain, late};
use crate::load::{
    fault::{Fault, FaultKind},
    plan::PlannedTarget,
    target::{Address, Protocol},
    tls::LoadTls,
    websocket::{SUBPROTOCOL_DECLINED, with_options},
};

/// Bytes of a message beside its payload.
const MESSAGE_EXTRA: usize = 1 << 10;

/// Requests have no body.
pub(super) type Sender = SendRequest<String>;

/// A connection's stream of bytes.
trait Io: hyper::rt::Read + hyper::rt::Write + Unpin {}
impl<T: hyper::rt::Read + hyper::rt::Write + Unpin> Io for T {}

/// A connection, and the one that follows it if the server ends it.
pub(super) struct Connection {
    shared: Rc<Shared>,
    target: usize,
    sender: RefCell<Sender>,
    /// How many were before.
    generation: Cell<u32>,
    /// The server has answered a request on it.
    pub(super) has_served: Cell<bool>,
    is_opening: Cell<bool>,
    opened: Change,
}

impl Connection {
    pub(super) async fn open(shared: &Rc<Shared>, target: usize) -> Result<Self, Fault> {
        Ok(Self {
            shared: Rc::clone(shared),
            target,
            sender: RefCell::new(open(shared, &shared.plan.targets[target]).await?),
            generation: Cell::new(0),
            has_served: Cell::new(false),
            is_opening: Cell::new(false),
            opened: Change::default(),
        })
    }

    pub(super) fn target(&self) -> &PlannedTarget {
        &self.shared.plan.targets[self.target]
    }

    /// The connection for the next request, and its generation.
    pub(super) fn sender(&self) -> (Sender, u32) {
        (self.sender.borrow().clone(), self.generation.get())
    }

    /// Opens it again, if nobody has since this generation.
    pub(super) async fn renew(&self, generation: u32) -> Result<(), Fault> {
        while self.is_opening.get() {
            self.opened.next().await;
        }
        if self.generation.get() != generation {
            return Ok(());
        }
        self.is_opening.set(true);
        let opened = open(&self.shared, self.target()).await;
        self.is_opening.set(false);
        if let Ok(sender) = &opened {
            self.sender.replace(sender.clone());
            self.generation.set(generation + 1);
            self.has_served.set(false);
            self.shared.exchanges[self.target].borrow_mut().results.reconnects += 1;
        }
        self.opened.tell();
        opened.map(drop)
    }

    /// Opens a WebSocket as a stream of it.
    pub(super) async fn websocket(&self) -> Result<WebSocket<UpgradedIo>, Fault> {
        let args = &self.shared.plan.args;
        let Protocol::WebSocket(resource) = &self.target().target.protocol else {
            unreachable!("the arguments were checked");
        };
        let message_max = args.size as usize + MESSAGE_EXTRA;
        let mut config = Config::new()
            .frame_max(message_max)
            .message_max(message_max)
            // The answers contain this program's own messages, so any compression ratio is good.
            .inflate_ratio_max(None)
            // All messages in flight fit, so that sending never waits for a server that waits
            // itself until its answers are read.
            .high_watermark(args.depth as usize * message_max);
        if args.deflate {
            config = config.deflate(DeflateConfig::DEFAULT);
        }
        let request = ClientRequest::new(&resource.host, &resource.path, config.random_key());
        let request = with_options(request, &args.header, args.subprotocol.as_deref());
        let (mut sender, _) = self.sender();
        let connecting = http2::connect(&mut sender, self.target().scheme(), request, &config);
        let socket = match timeout(args.timeout, connecting).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(UpgradeError::Hyper(error))) => {
                return Err(Fault::new(FaultKind::Handshake, chain(&error)));
            }
            Ok(Err(error)) => return Err(Fault::new(FaultKind::Handshake, error)),
            Err(_) => {
                let what = "answer to the upgrade (does the server accept fewer streams of a \
                            connection than --streams?)";
                return Err(late(FaultKind::Handshake, what, args.timeout));
            }
        };
        if args.deflate && !socket.has_compression() {
            let text = "the server declines permessage-deflate";
            return Err(Fault::new(FaultKind::Handshake, text));
        }
        if socket.protocol() != args.subprotocol.as_deref() {
            return Err(Fault::new(FaultKind::Handshake, SUBPROTOCOL_DECLINED));
        }
        Ok(socket)
    }
}

impl PlannedTarget {
    /// The scheme of requests (RFC 9113 section 8.3.1).
    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

async fn open(shared: &Shared, target: &PlannedTarget) -> Result<Sender, Fault> {
    let args = &shared.plan.args;
    let io = connect(shared, target).await?;
    let mut builder = Builder::new(WindlassExecutor);
    client_settings(&mut builder, args.streams_per_connection());
    let (io, settings) = watch(io);
    let handshake = builder.handshake(io).await;
    let (sender, connection) =
        handshake.map_err(|error| Fault::new(FaultKind::Handshake, chain(&error)))?;
    spawn(async move {
        // The requests have its error.
        let _ = connection.await;
    })
    .detach();
    match timeout(args.timeout, settings).await {
        Ok(Ok(true)) => Ok(sender),
        Ok(Ok(false)) if args.is_http() => Ok(sender),
        Ok(Ok(false)) => Err(Fault::new(
            FaultKind::Handshake,
            "the server offers no WebSockets over HTTP/2 (SETTINGS_ENABLE_CONNECT_PROTOCOL of RFC \
             8441); enable them there, or omit --http2",
        )),
        Ok(Err(_)) => Err(not_http2()),
        Err(_) => {
            Err(late(FaultKind::Handshake, "settings of HTTP/2 from the server", args.timeout))
        }
    }
}

pub(super) fn not_http2() -> Fault {
    let text = "the server does not speak HTTP/2 on this port; enable it there, or omit --http2";
    Fault::new(FaultKind::Handshake, text)
}

/// Connects to the first address that accepts.
async fn connect(shared: &Shared, target: &PlannedTarget) -> Result<Box<dyn Io>, Fault> {
    let args = &shared.plan.args;
    let mut fault = None;
    for address in &target.addresses {
        let connected = match address {
            Address::Tcp(address) => {
                match timeout(args.timeout, TcpStream::connect(*address)).await {
                    Ok(Ok(stream)) => return with_tls(stream, target.tls.as_ref()).await,
                    Ok(Err(error)) => error,
                    Err(_) => io::ErrorKind::TimedOut.into(),
                }
            }
            Address::Unix(path) => match timeout(args.timeout, UnixStream::connect(path)).await {
                Ok(Ok(stream)) => return Ok(Box::new(stream)),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            },
        };
        fault = Some(Fault::new(
            FaultKind::Connect,
            format_args!("cannot connect to {address}: {connected}"),
        ));
    }
    Err(fault.expect("there is an address"))
}

async fn with_tls(stream: TcpStream, tls: Option<&LoadTls>) -> Result<Box<dyn Io>, Fault> {
    stream.set_nodelay(true).map_err(|error| Fault::new(FaultKind::Connect, error))?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let failed = match timeout(tls.handshake_timeout, tls.connect(stream)).await {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
            return Ok(Box::new(TokioIo::new(stream)));
        }
        Ok(Ok(_)) => return Err(not_http2()),
        Ok(Err(error)) => error,
        Err(_) => return Err(tls.fault(TlsFailure::HandshakeTimeout)),
    };
    if failed.kind() == io::ErrorKind::UnexpectedEof {
        return Err(tls.fault(TlsFailure::HandshakeIncomplete));
    }
    let inner = failed.get_ref().and_then(|error| error.downcast_ref());
    match inner.map(windlass_tls::failure) {
        Some(TlsFailure::NoCommonAlpn) => Err(not_http2()),
        // The alert `no_application_protocol` (RFC 7301 section 3.2).
        Some(TlsFailure::AlertReceived(120)) => Err(not_http2()),
        // Such as an answer of HTTP in cleartext.
        Some(TlsFailure::ProtocolViolation) => Err(tls.fault(TlsFailure::NotTls)),
        Some(failure) => Err(tls.fault(failure)),
        None => Err(Fault::new(FaultKind::Tls, failed)),
    }
}
