//! What the programs with a runtime for futures have in common. They are macros, because a function
//! or a trait would add a future of its own to every measured operation.

/// The sockets of a [`Runtime`](crate::tasks::Runtime), inside of its implementation. The types
/// have the methods that tokio's have. `$connection` has a function `new` that takes a `$stream`.
#[macro_export]
macro_rules! runtime_sockets {
    ($listener:ty, $stream:ty, $connection:ty) => {
        type Listener = $listener;
        type Stream = $connection;

        async fn listen() -> std::io::Result<($listener, std::net::SocketAddr)> {
            let listener = <$listener>::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        }

        async fn accept(listener: &$listener) -> std::io::Result<$connection> {
            <$connection>::new(listener.accept().await?.0)
        }

        async fn connect(address: std::net::SocketAddr) -> std::io::Result<$connection> {
            <$connection>::new(<$stream>::connect(address).await?)
        }
    };
}

/// A [`Stream`](crate::tasks::Stream) named `Connection`, for sockets whose `read` and `write_all`
/// borrow the buffer. The last argument counts the calls that returned `EAGAIN`.
#[macro_export]
macro_rules! borrowing_connection {
    ($stream:ty, $would_block_count:expr) => {
        pub(crate) struct Connection {
            stream: $stream,
            message: $crate::tasks::Message,
        }

        impl Connection {
            fn new(stream: $stream) -> std::io::Result<Self> {
                stream.set_nodelay(true)?;
                Ok(Self { stream, message: $crate::tasks::Message::default() })
            }

            /// The socket, for the suite `http`.
            #[allow(dead_code, reason = "some programs lack that suite")]
            pub(crate) fn into_inner(self) -> $stream {
                self.stream
            }
        }

        impl $crate::tasks::Stream for Connection {
            #[inline]
            async fn send(&mut self, number: u64) -> std::io::Result<()> {
                self.stream.write_all(self.message.numbered(number)).await
            }

            #[inline]
            async fn receive(&mut self) -> std::io::Result<Option<u64>> {
                let length = self.stream.read(self.message.room()).await?;
                self.message.received(length)
            }

            fn read_exactly(&mut self) {
                self.message.read_exactly();
            }

            fn descriptor(&self) -> std::os::fd::RawFd {
                use std::os::fd::{AsFd, AsRawFd};
                self.stream.as_fd().as_raw_fd()
            }

            fn would_block_count(&self) -> Option<u32> {
                let count: fn(&$stream) -> Option<u32> = $would_block_count;
                count(&self.stream)
            }
        }
    };
}

/// An [`HttpStream`](crate::http::HttpStream) named `HttpConnection`, for such sockets.
#[macro_export]
macro_rules! borrowing_http_connection {
    ($stream:ty) => {
        pub(crate) struct HttpConnection(pub(crate) $stream);

        impl $crate::http::HttpStream for HttpConnection {
            #[inline]
            async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
                self.0.write_all(bytes).await
            }

            #[inline]
            async fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(room).await
            }
        }
    };
}
