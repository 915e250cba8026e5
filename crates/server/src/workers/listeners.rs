//! The listeners of a server.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use windlass::stream::{Address, ListenOptions, Listener, StreamLimit, TlsSessionFactory};

use crate::api::Options;

/// An address or socket to listen on.
pub(super) enum ListenTarget {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Socket(OwnedFd),
    /// Separate sockets for each worker.
    Each(Vec<Vec<OwnedFd>>),
}

/// The sockets of one call of the configuration, and their TLS.
pub(super) struct ServerListener {
    target: ListenTarget,
    pub(super) tls: Option<Arc<dyn TlsSessionFactory>>,
}

impl From<ListenTarget> for ServerListener {
    fn from(target: ListenTarget) -> Self {
        Self { target, tls: None }
    }
}

/// The listeners of each worker, their addresses, and the limit that they share.
pub(super) type OpenListeners = (Vec<Vec<Listener>>, Vec<Address>, StreamLimit);

/// Opens the listeners of each worker.
pub(super) fn open_listeners(
    options: &Options,
    targets: Vec<ServerListener>,
    count: usize,
) -> io::Result<OpenListeners> {
    let listen = options.listener();
    // One limit for all workers: the kernel's distribution of connections decides each worker's
    // share.
    let limit = StreamLimit::new(options.accepted_max());
    let mut sets: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for ServerListener { target, tls } in targets {
        let complete = |listener: Listener| {
            let listener = listener.limited(&limit);
            match &tls {
                Some(tls) => listener.with_tls(Arc::clone(tls)),
                None => listener,
            }
        };
        let group = match target {
            ListenTarget::Tcp(address) => listen.tcp_group(address, count)?,
            ListenTarget::Unix(path) => {
                share_socket(listen, listen.unix(path)?.as_fd().try_clone_to_owned()?, count)?
            }
            ListenTarget::Socket(socket) => share_socket(listen, socket, count)?,
            ListenTarget::Each(sockets) => {
                assert_eq!(sockets.len(), count, "there is a list of sockets for each worker");
                for (worker, (set, sockets)) in sets.iter_mut().zip(sockets).enumerate() {
                    for socket in sockets {
                        let listener = listen.from_fd(socket)?;
                        if worker == 0 {
                            addresses.push(listener.local_addr()?);
                        }
                        set.push(complete(listener));
                    }
                }
                continue;
            }
        };
        addresses.push(group[0].local_addr()?);
        for (set, listener) in sets.iter_mut().zip(group) {
            set.push(complete(listener));
        }
    }
    Ok((sets, addresses, limit))
}

/// Shares one socket among all workers: the first to accept gets the connection.
fn share_socket(listen: ListenOptions, socket: OwnedFd, count: usize) -> io::Result<Vec<Listener>> {
    (0..count).map(|_| listen.from_fd(socket.try_clone()?)).collect()
}
