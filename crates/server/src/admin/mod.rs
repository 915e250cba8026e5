//! The admin listener: metrics, health and status of a running server, and its connections.
//!
//! It runs on a thread and a reactor of its own, so it answers while workers are busy or drain. It
//! reads copies of the workers' counts. No data path takes a lock for it.

mod connection;
mod connection_list;
mod controls;
mod disconnect;
mod inspect;
mod rejections;
mod token;

use core::fmt;
use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use windlass::{
    Backend, Reactor, Remote, Stop,
    stream::{
        Address, ListenOptions, Listener, ListenerKey, Peer, StreamOptions, TlsSessionFactory,
    },
};

pub use self::{disconnect::AdminDisconnect, token::AdminToken};

use self::{
    connection::{AdminConn, AdminState},
    controls::{Access, Controls},
    disconnect::OnDisconnected,
    rejections::{OnRejected, Rejections},
};
use crate::{
    api::Rejected,
    http::{ConnectionLimiter, Hosts, ListenerKind},
    mailbox::StatsHandle,
};

/// Maximum number of connections of the admin listener. A further one takes the place of another.
const CONNECTIONS_MAX: usize = 64;

/// Maximum number of connections in their TLS handshake, and those of one address with its others.
const HANDSHAKES_MAX: usize = 1024;
const WITH_TLS_PER_ADDRESS_MAX: usize = 128;

/// The default of [`Admin::stall_limit`].
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Maximum time until the first byte from a client of the admin listener.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);

/// A listener for the operator of a server, beside the public listeners.
///
/// | path | answer |
/// |---|---|
/// | `/metrics` | counts in the Prometheus text format 0.0.4 |
/// | `/healthz` | 200, also in a drain; 503 if a worker is [stalled](Self::stall_limit) |
/// | `/readyz` | 200, or 503 also in a drain, with the memory budget spent, or a cluster lost |
/// | `/status` | the main counts as a JSON object |
/// | `/connections?sort=&room=&limit=` | the first by `bytes`, `age` or `buffered`, as JSON |
/// | `/rooms?limit=` | the topics with the most subscribers, as JSON |
/// | `POST /disconnect?id=` | disconnects one client; or those of an `address=` or a `room=` |
///
/// The last three are by an [`Inspector`](crate::Inspector): its documentation says what a look at
/// the connections costs. A list has 100 rows, or `limit`, at most 1000. A parameter that is
/// unknown or invalid gets 400. The response says `"complete":false` if a worker has not answered
/// in time. `/disconnect` is available only with a token. A lost cluster counts if it is
/// [required](Self::cluster_required).
///
/// - On a loopback address and on a Unix socket no token is needed. Elsewhere
///   [`start`](Self::start) fails without one. A request without the token, or with another one,
///   gets 401. Where no token is needed, a request for connections or rooms that a page of another
///   site has sent gets 403.
/// - The Host of a request is checked like that of a public listener: see [`Hosts`]. A foreign Host
///   gets 421.
/// - It holds at most 64 connections. For a further one it closes one that has had no answer: the
///   oldest of the address with most of these. If there is none, it closes the one that was
///   answered longest ago. A client has 5 s to begin its first request.
/// - So a flood from one address, or one IPv6 network of 64 bits, does not keep another address
///   out. A flood from 64 addresses does, and so does one from the client's own address,
///   if 64 connections come in the time from the client's connection to its request. The clients of
///   a Unix socket, and those behind one proxy, count as one address. Let the permissions of a Unix
///   socket, or a firewall, keep strangers away.
/// - With [TLS](Self::with_tls), a connection counts as one of the 64 after its handshake, which
///   may take 5 s. At most 1024 are in it, and an address has at most 128 connections.
/// - What it rejects is counted in `windlass_admin_refusals_total`, which is in its own `/metrics`
///   only, and reported to [`on_rejected`](Self::on_rejected).
///
/// ```
/// use std::{io::{Read as _, Write as _}, net::TcpStream};
/// use windlass_server::{Admin, Options, Server};
/// # use windlass_server::{Connection, Handler, Message, http::{Accept, Reject, UpgradeRequest}};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
/// #         let _ = connection.reply_in_place(message);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let server = Server::new(Options::new(), |_worker| Echo);
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// let admin = Admin::listen(([127, 0, 0, 1], 0).into())?.start(running.stats_handle())?;
///
/// let mut client = TcpStream::connect(admin.address().socket_addr().expect("it listens on TCP"))?;
/// client.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
/// let mut response = String::new();
/// client.read_to_string(&mut response)?;
/// assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("alive\n"));
///
/// running.stop();
/// running.join()
/// # }
/// ```
#[must_use = "nothing is answered before `start`"]
pub struct Admin {
    listener: Listener,
    address: Address,
    token: Option<AdminToken>,
    hosts: Hosts,
    backend: Backend,
    on_rejected: Option<OnRejected>,
    on_disconnected: Option<OnDisconnected>,
    rules: Rules,
}

/// How requests are answered.
#[derive(Clone, Copy)]
struct Rules {
    stall_limit: Duration,
    /// Health needs no token.
    has_open_health: bool,
    is_cluster_required: bool,
}

impl Admin {
    /// Listens at a TCP address. Connections wait until [`start`](Self::start).
    ///
    /// # Errors
    /// - [`ListenError`](crate::ListenError), which names the address.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        Self::new(listen_options().tcp(address)?)
    }

    /// Listens at a Unix socket path. The file must not exist; the application removes it
    /// afterwards. The permissions of the file decide who may connect.
    ///
    /// # Errors
    /// - [`ListenError`](crate::ListenError), which names the path.
    pub fn listen_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(listen_options().unix(path)?)
    }

    /// Uses a socket that already listens, for instance one from the service manager.
    ///
    /// # Errors
    /// - Those of [`ListenOptions::from_fd`](windlass::stream::ListenOptions::from_fd).
    pub fn listen_on(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        Self::new(listen_options().from_fd(socket)?)
    }

    fn new(listener: Listener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (token, hosts, backend) = (None, Hosts::default(), Backend::Auto);
        let (on_rejected, on_disconnected) = (None, None);
        let (stall_limit, has_open_health, is_cluster_required) = (STALL_LIMIT, false, false);
        let rules = Rules { stall_limit, has_open_health, is_cluster_required };
        Ok(Self { listener, address, token, hosts, backend, on_rejected, on_disconnected, rules })
    }

    /// Requires this token in each request: `Authorization: Bearer TOKEN`. It is compared in a time
    /// that does not depend on how much of it is right.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) if it is shorter than 16 bytes, or has
    ///   characters other than visible ASCII.
    pub fn token(mut self, token: &str) -> io::Result<Self> {
        self.token = Some(AdminToken::new(token)?);
        Ok(self)
    }

    /// As [`token`](Self::token), with one that was checked before.
    pub fn with_token(mut self, token: AdminToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the hosts that requests may ask for. Default: [`Hosts::Local`].
    pub fn hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// Sets the backend of the listener's own reactor. Default: [`Backend::Auto`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the time after which a worker that has not finished a turn makes `/healthz` and
    /// `/readyz` answer 503. A worker finishes one at least once a second. Default: 5 s.
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.rules.stall_limit = limit;
        self
    }

    /// Answers `/healthz` and `/readyz` without a token, for probes that have none. They say why
    /// the server is not ready, and nothing else. Such an answer is by counts that may be a second
    /// old, and ends the connection. Default: no.
    pub fn open_health(mut self, is_open: bool) -> Self {
        self.rules.has_open_health = is_open;
        self
    }

    /// Makes `/readyz` answer 503 while the bus of a [cluster](crate::Server::cluster) cannot be
    /// reached. Default: no; the answer says so with 200, and the metric
    /// `windlass_cluster_connected` is 0: the clients of this server still reach each other.
    pub fn cluster_required(mut self, is_required: bool) -> Self {
        self.rules.is_cluster_required = is_required;
        self
    }

    /// Adds TLS. All further requests must be `https://`.
    pub fn with_tls(mut self, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        self.listener = self.listener.with_tls(sessions);
        self
    }

    /// Sets a function that is called for each request that disconnects clients. As for
    /// [`on_rejected`](Self::on_rejected), it is called on the listener's thread.
    ///
    /// ```
    /// use windlass_server::{Admin, printable};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let admin = Admin::listen(([127, 0, 0, 1], 0).into())?.on_disconnected(|request| {
    ///     let target = printable(request.target);
    ///     eprintln!("{} clients by {} {target}", request.done.count, request.by);
    /// });
    /// # drop(admin);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_disconnected(mut self, call: impl Fn(&AdminDisconnect<'_>) + Send + 'static) -> Self {
        self.on_disconnected = Some(Box::new(call));
        self
    }

    /// Sets a function that is called for each rejected request, and for each connection that is
    /// closed because there are too many, which has no status. It is called on the listener's
    /// thread, which answers nobody meanwhile. The listener survives a panic of the function.
    ///
    /// ```
    /// use windlass_server::Admin;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let admin = Admin::listen(([127, 0, 0, 1], 0).into())?;
    /// let admin = admin.on_rejected(|rejected| {
    ///     eprintln!("{}: {:?} {}", rejected.peer, rejected.status, rejected.reason);
    /// });
    /// # drop(admin);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_rejected(mut self, call: impl Fn(&Rejected<'_>) + Send + 'static) -> Self {
        self.on_rejected = Some(Box::new(call));
        self
    }

    /// The address where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Starts the thread that answers. It ends when all workers have ended, or when the returned
    /// value is dropped.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) without a token on an address that is
    ///   neither a loopback address nor a Unix socket.
    /// - That of a [`BuildError`](windlass::BuildError), or that no thread can be started.
    pub fn start(self, stats: StatsHandle) -> io::Result<RunningAdmin> {
        let Self { listener, address, token, hosts, backend, .. } = self;
        let Self { on_rejected, on_disconnected, rules, .. } = self;
        let listener_kind = ListenerKind::of(&address);
        check_access(&address, token.as_ref())?;
        let controls = Arc::new(Controls::new(Access { token, hosts }));
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let (own_stats, own_controls) = (stats.clone(), Arc::clone(&controls));
        let thread = thread::Builder::new().name("wl-admin".to_owned()).spawn(move || {
            let rejections = Rejections::new(on_rejected);
            let state = AdminState::new(
                own_stats,
                own_controls,
                listener_kind,
                rejections,
                rules,
                on_disconnected,
            );
            let (mut reactor, listener) = match build_reactor(listener, state, backend) {
                Ok(built) => built,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            // The receiver waits for this.
            let _ = started.send(Ok((reactor.stop_handle(), reactor.remote(), listener)));
            // A reactor that cannot wait leaves the listener closed, and the server runs on.
            let _ = reactor.run();
        })?;
        let (stop, remote, listener) = match start.recv() {
            Ok(Ok(handles)) => handles,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(io::Error::other("the thread of the admin listener panicked")),
        };
        let at_end = stop.clone();
        stats.on_end(move || at_end.stop());
        Ok(RunningAdmin { address, controls, stop, remote, listener, thread: Some(thread) })
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("address", &self.address)
            .field("has_token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

fn listen_options() -> ListenOptions {
    let stream = StreamOptions::new()
        .output_max(usize::MAX)
        .idle_timeout(Some(FIRST_BYTE_TIMEOUT))
        .tls_handshake_timeout(FIRST_BYTE_TIMEOUT);
    // One more: it is accepted before another one goes.
    ListenOptions::new().stream(stream).connections_max(CONNECTIONS_MAX + 1)
}

/// Elsewhere than on the own machine a token is needed.
fn check_access(address: &Address, token: Option<&AdminToken>) -> io::Result<()> {
    if token.is_some() || ListenerKind::of(address) != ListenerKind::Network {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "the admin listener at {address} can be reached from other machines and has no token: \
             set one, or listen on a loopback address or a Unix socket"
        ),
    ))
}

fn build_reactor(
    listener: Listener,
    state: AdminState,
    backend: Backend,
) -> io::Result<(Reactor, ListenerKey)> {
    let mut reactor = Reactor::builder().backend(backend).build()?;
    let state = Rc::new(state);
    let has_tls = listener.tls().is_some();
    let limiter = has_tls.then(|| ConnectionLimiter::new(None, Some(WITH_TLS_PER_ADDRESS_MAX)));
    let accept = move |peer: &Peer<'_>| {
        let permit = limiter.as_ref().map(|limiter| limiter.try_acquire(peer.address()));
        match permit.transpose() {
            Ok(permit) => Some(AdminConn::new(Rc::clone(&state), peer.address(), permit)),
            Err(error) => {
                state.note_too_many(peer.address(), &error.to_string());
                None
            }
        }
    };
    let key = listener.register(accept, &mut reactor).map_err(io::Error::from)?;
    if has_tls {
        let most = CONNECTIONS_MAX + 1 + HANDSHAKES_MAX;
        reactor.listener(key)?.set_connections_max(most);
    }
    Ok((reactor, key))
}

/// A running admin listener. Dropping it closes the listener and its connections.
///
/// ```
/// use windlass_server::{Admin, Options, Server};
/// # use windlass_server::{Connection, Handler, Message, http::{Accept, Reject, UpgradeRequest}};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
/// #         let _ = connection.reply_in_place(message);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let server = Server::new(Options::new(), |_worker| Echo);
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// let admin = Admin::listen(([127, 0, 0, 1], 0).into())?.start(running.stats_handle())?;
/// println!("metrics: http://{}/metrics", admin.address());
/// running.stop();
/// running.join()?;
/// // The workers have ended, so this returns.
/// admin.join();
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it closes the listener"]
pub struct RunningAdmin {
    address: Address,
    controls: Arc<Controls>,
    stop: Stop,
    remote: Remote,
    listener: ListenerKey,
    thread: Option<JoinHandle<()>>,
}

impl RunningAdmin {
    /// The address where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Changes the token and the hosts for further requests.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) without a token on an address that is
    ///   neither a loopback address nor a Unix socket. Nothing has changed.
    pub fn set_access(&self, token: Option<AdminToken>, hosts: Hosts) -> io::Result<()> {
        self.check_access(token.as_ref())?;
        self.controls.set_access(Access { token, hosts });
        Ok(())
    }

    /// Checks whether [`set_access`](Self::set_access) would fail.
    ///
    /// # Errors
    /// The same.
    pub fn check_access(&self, token: Option<&AdminToken>) -> io::Result<()> {
        check_access(&self.address, token)
    }

    /// Makes `/readyz` answer 503 from now on, so that no further clients are sent to the server.
    /// The server itself goes on, until it is [drained](crate::RunningServer::drain).
    pub fn announce_shutdown(&self) {
        self.controls.leave();
    }

    /// Counts an attempt of the program to read its configuration again, in
    /// `windlass_configuration_reloads_total`. The listener itself reads nothing.
    pub fn note_reload(&self, has_succeeded: bool) {
        self.controls.note_reload(has_succeeded);
    }

    /// Stops accepting, for a process that has the same socket too. Connections that were accepted
    /// are still answered.
    pub fn stop_accepting(&self) {
        let listener = self.listener;
        // It fails if the listener has ended already.
        let _ = self.remote.call(move |mut turn| {
            if let Ok(listening) = turn.listener(listener) {
                listening.delete();
            }
        });
    }

    /// Waits until all workers have ended and the listener is closed.
    pub fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the process' panic hook, and the listener is closed.
            let _ = thread.join();
        }
    }
}

impl Drop for RunningAdmin {
    fn drop(&mut self) {
        self.stop.stop();
        self.wait();
    }
}

impl fmt::Debug for RunningAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningAdmin").field("address", &self.address).finish_non_exhaustive()
    }
}
