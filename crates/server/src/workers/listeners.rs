//! The listeners of a server.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use windlass::stream::{Address, ListenOptions, Listener, StreamLimit};

use crate::api::Options;

/// An address or socket to listen on.
pub(super) enum ListenTarget {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Socket(OwnedFd),
    /// Separate sockets for each worker.
    Each(Vec<Vec<OwnedFd>>),
}

/// Opens the listeners of each worker, and returns their addresses.
pub(super) fn open_listeners(
    options: &Options,
    targets: Vec<ListenTarget>,
    count: usize,
) -> io::Result<(Vec<Vec<Listener>>, Vec<Address>)> {
    let listen = options.listener();
    // One limit for all workers: the kernel's distribution of connections decides each worker's
    // share.
    let limit = StreamLimit::new(options.connections_max);
    let mut sets: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for target in targets {
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
                        set.push(listener.limited(&limit));
                    }
                }
                continue;
            }
        };
        addresses.push(group[0].local_addr()?);
        for (set, listener) in sets.iter_mut().zip(group) {
            set.push(listener.limited(&limit));
        }
    }
    Ok((sets, addresses))
}

/// Shares one socket among all workers: the first to accept gets the connection.
fn share_socket(listen: ListenOptions, socket: OwnedFd, count: usize) -> io::Result<Vec<Listener>> {
    (0..count).map(|_| listen.from_fd(socket.try_clone()?)).collect()
}
