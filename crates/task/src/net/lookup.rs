//! [`lookup_host`]: names to addresses, by getaddrinfo(3) on a thread for blocking calls.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
};

use crate::{blocking::spawn_blocking, handle::Handle, net::ToAddresses};

/// Resolves a name, such as `"localhost:80"`. Addresses in text form are returned without a
/// lookup.
///
/// The C library resolves, by [`spawn_blocking`], because getaddrinfo(3) blocks. A lookup whose
/// future is dropped runs to its end, and its result is discarded.
///
/// ```
/// use windlass_task::{block_on, net::lookup_host};
///
/// # fn main() -> std::io::Result<()> {
/// let addresses = block_on(lookup_host("127.0.0.1:80"))?;
/// assert_eq!(addresses, ["127.0.0.1:80".parse().unwrap()]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// - That of getaddrinfo(3).
/// - `InvalidInput` if there is no address.
/// - That of [`spawn_blocking`], for example because its queue is full, or if no executor runs on
///   this thread.
pub async fn lookup_host(host: impl ToAddresses) -> io::Result<Vec<SocketAddr>> {
    Ok(host.to_addresses().resolve().await?.to_vec())
}

pub(super) async fn resolve(name: String) -> io::Result<Vec<SocketAddr>> {
    if Handle::current().is_none() {
        return Err(io::Error::other("no executor runs on this thread: resolve inside `block_on`"));
    }
    spawn_blocking(move || name.to_socket_addrs().map(Iterator::collect))?.await?
}
