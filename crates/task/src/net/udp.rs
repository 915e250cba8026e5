//! [`UdpSocket`].

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::{buffer::spare_capacity, net::RecvFlags};

#[cfg(feature = "sim")]
use crate::net::{common, simulated};
use crate::{
    fd::{AsyncFd, Direction, source::ShortRead},
    io::{Socket, either},
    net::{ToAddresses, common::impl_socket},
};

/// A UDP socket, connected to a peer or not.
///
/// All methods take `&self`, so any number of tasks can share it in an `Rc`. Dropping a future
/// loses no datagram. A datagram that is longer than the buffer is cut. An empty datagram is sent
/// and received like any other.
///
/// ```
/// use windlass_task::{block_on, net::UdpSocket};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let server = UdpSocket::bind("127.0.0.1:0").await?;
///     let client = UdpSocket::bind("127.0.0.1:0").await?;
///     client.connect(server.local_addr()?).await?;
///     client.send(b"ping").await?;
///     let mut buffer = [0; 16];
///     let (count, peer) = server.recv_from(&mut buffer).await?;
///     server.send_to(&buffer[..count], peer).await?;
///     assert_eq!(client.recv(&mut buffer).await?, 4);
///     Ok(())
/// })
/// # }
/// ```
pub struct UdpSocket {
    io: AsyncFd<Socket<std::net::UdpSocket>>,
}

impl_socket!(UdpSocket, std::net::UdpSocket, ShortRead::SaysNothing);

impl UdpSocket {
    /// A socket bound to the first address that can be bound.
    ///
    /// # Errors
    /// That of the last address: of socket(2) or bind(2). That of
    /// [`lookup_host`](crate::net::lookup_host), or if no executor runs on this thread.
    pub async fn bind(addresses: impl ToAddresses) -> io::Result<Self> {
        let addresses = addresses.to_addresses().resolve().await?;
        #[cfg(feature = "sim")]
        if let Some(socket) = simulated::datagrams(&addresses)? {
            return Ok(Self { io: common::fresh(socket, ShortRead::SaysNothing)? });
        }
        Self::from_std(std::net::UdpSocket::bind(&addresses[..])?)
    }

    /// Sets the peer: the first address that can be. Only its datagrams are received then.
    ///
    /// # Errors
    /// That of connect(2), or of [`lookup_host`](crate::net::lookup_host).
    pub async fn connect(&self, addresses: impl ToAddresses) -> io::Result<()> {
        let addresses = addresses.to_addresses().resolve().await?;
        either!(self.io.get_ref(), |socket| socket.connect(&addresses[..]), |kernel, fd| {
            kernel.connect(fd, &addresses[0].into())
        })
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// That of send(2). `ConnectionRefused` reports an earlier datagram that nobody received.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write(|socket| send_now(socket, bytes)).await
    }

    /// Sends a datagram to an address.
    ///
    /// # Errors
    /// That of sendto(2), or of [`lookup_host`](crate::net::lookup_host).
    pub async fn send_to(&self, bytes: &[u8], to: impl ToAddresses) -> io::Result<usize> {
        let to = to.to_addresses().resolve().await?[0];
        self.write(|socket| send_to_now(socket, bytes, to)).await
    }

    /// Receives a datagram.
    ///
    /// # Errors
    /// That of recv(2). `ConnectionRefused` reports an earlier datagram that nobody received.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(|socket| recv_now(socket, buffer)).await
    }

    /// Receives a datagram, and the address of its sender.
    ///
    /// # Errors
    /// That of recvfrom(2).
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|socket| recv_from_now(socket, buffer)).await
    }

    /// Receives a datagram that is there, without waiting. Use it after
    /// [`readable`](Self::readable).
    ///
    /// # Errors
    /// `WouldBlock` if there is none. Otherwise as [`recv`](Self::recv).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read(|socket| recv_now(socket, buffer))
    }

    /// Receives a datagram that is there, and the address of its sender, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. Otherwise as [`recv_from`](Self::recv_from).
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.try_read(|socket| recv_from_now(socket, buffer))
    }

    /// Sends a datagram to the peer, without waiting. Use it after [`writable`](Self::writable).
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Otherwise as [`send`](Self::send).
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(|socket| send_now(socket, bytes))
    }

    /// Sends a datagram to an address, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Otherwise as [`send_to`](Self::send_to).
    pub fn try_send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.try_write(|socket| send_to_now(socket, bytes, to))
    }

    /// Receives a datagram into the unused capacity of a buffer, and makes it longer by the
    /// datagram. A datagram that is longer than that capacity is cut.
    ///
    /// ```
    /// use windlass_task::{block_on, net::UdpSocket};
    ///
    /// # async fn bind() -> std::io::Result<UdpSocket> { UdpSocket::bind("127.0.0.1:0").await }
    /// # fn main() -> std::io::Result<()> {
    /// block_on(async {
    ///     let (here, there) = (bind().await?, bind().await?);
    ///     here.send_to(b"hello", there.local_addr()?).await?;
    ///     let mut buffer = Vec::with_capacity(16);
    ///     assert_eq!(there.recv_buf(&mut buffer).await?, 5);
    ///     assert_eq!(buffer, b"hello");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv`](Self::recv). `InvalidInput` if the buffer has no unused capacity: reserve some.
    pub async fn recv_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if buffer.len() == buffer.capacity() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.read(|socket| {
            either!(
                socket,
                |socket| {
                    Ok(rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::empty())?.1)
                },
                |kernel, fd| {
                    let mut bytes = vec![0; buffer.capacity() - buffer.len()];
                    let count = kernel.read(fd, &mut bytes)?;
                    buffer.extend_from_slice(&bytes[..count]);
                    Ok(count)
                }
            )
        })
        .await
    }

    /// Receives a datagram without removing it.
    ///
    /// # Errors
    /// That of recv(2).
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(|socket| socket.kernel()?.peek(buffer)).await
    }

    /// Receives a datagram without removing it, and the address of its sender.
    ///
    /// # Errors
    /// That of recvfrom(2).
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|socket| socket.kernel()?.peek_from(buffer)).await
    }

    /// The local address, with the port that was chosen.
    ///
    /// # Errors
    /// That of the system call.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.local_addr(), |kernel, fd| {
            simulated::inet(kernel.local_addr(fd)?)
        })
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of the system call.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.peer_addr(), |kernel, fd| {
            simulated::inet(kernel.peer_addr(fd)?)
        })
    }

    fn try_read<T>(
        &self,
        call: impl FnOnce(&Socket<std::net::UdpSocket>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().try_io(Direction::Read, || call(self.io.get_ref()))
    }

    fn try_write<T>(
        &self,
        call: impl FnOnce(&Socket<std::net::UdpSocket>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().try_io(Direction::Write, || call(self.io.get_ref()))
    }

    async fn read<T>(
        &self,
        mut call: impl FnMut(&Socket<std::net::UdpSocket>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().io(Direction::Read, || call(self.io.get_ref())).await
    }

    async fn write<T>(
        &self,
        mut call: impl FnMut(&Socket<std::net::UdpSocket>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().io(Direction::Write, || call(self.io.get_ref())).await
    }
}

type Udp = Socket<std::net::UdpSocket>;

fn send_now(socket: &Udp, bytes: &[u8]) -> io::Result<usize> {
    either!(socket, |socket| socket.send(bytes), |kernel, fd| kernel.write(fd, bytes))
}

fn send_to_now(socket: &Udp, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
    either!(socket, |socket| socket.send_to(bytes, to), |kernel, fd| {
        kernel.send_to(fd, bytes, &to.into())
    })
}

fn recv_now(socket: &Udp, buffer: &mut [u8]) -> io::Result<usize> {
    either!(socket, |socket| socket.recv(buffer), |kernel, fd| kernel.read(fd, buffer))
}

fn recv_from_now(socket: &Udp, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    either!(socket, |socket| socket.recv_from(buffer), |kernel, fd| {
        let (count, from) = kernel.recv_from(fd, buffer)?;
        Ok((count, simulated::inet(from)?))
    })
}

/// Methods that only pass on to the socket of the standard library.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl UdpSocket {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// That of the system call.
                pub fn $name(&self $(, $argument: $type)*) -> io::Result<$result> {
                    self.io.get_ref().kernel()?.$name($($argument),*)
                }
            )*
        }
    };
}

options! {
    /// Whether datagrams may be sent to a broadcast address.
    broadcast() -> bool;
    /// Allows datagrams to a broadcast address.
    set_broadcast(is_on: bool) -> ();
    /// The time to live of its datagrams.
    ttl() -> u32;
    /// Sets the time to live of its datagrams.
    set_ttl(ttl: u32) -> ();
    /// Whether its own multicast datagrams come back.
    multicast_loop_v4() -> bool;
    /// Sets whether its own multicast datagrams come back.
    set_multicast_loop_v4(is_on: bool) -> ();
    /// Whether its own multicast datagrams come back (IPv6).
    multicast_loop_v6() -> bool;
    /// Sets whether its own multicast datagrams come back (IPv6).
    set_multicast_loop_v6(is_on: bool) -> ();
    /// The time to live of its multicast datagrams.
    multicast_ttl_v4() -> u32;
    /// Sets the time to live of its multicast datagrams. The default of 1 keeps them in the local
    /// network.
    set_multicast_ttl_v4(ttl: u32) -> ();
    /// Joins a multicast group, on the interface with this address.
    join_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Leaves a multicast group.
    leave_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Joins a multicast group, on the interface with this index; 0 is any.
    join_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
    /// Leaves a multicast group.
    leave_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
}
