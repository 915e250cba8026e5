//! The traits of futures-io, tokio and hyper, which the features `futures-io`, `tokio-io` and
//! `hyper` implement.

use crate::{
    scenarios::Build,
    tools::{connected, run},
};

#[cfg(feature = "tokio-io")]
fn streams_and_halves_have_the_traits_of_tokio(build: Build) {
    use core::{future::poll_fn, pin::Pin};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    async fn exchange(mut from: impl AsyncWrite + Unpin, mut to: impl AsyncRead + Unpin) {
        assert!(from.is_write_vectored());
        let write = poll_fn(|context| Pin::new(&mut from).poll_write(context, b"hello"));
        assert_eq!(write.await.unwrap(), 5);
        poll_fn(|context| Pin::new(&mut from).poll_flush(context)).await.unwrap();
        let mut memory = [0; 8];
        let mut buffer = ReadBuf::new(&mut memory);
        buffer.put_slice(b">>");
        poll_fn(|context| Pin::new(&mut to).poll_read(context, &mut buffer)).await.unwrap();
        assert_eq!(buffer.filled(), b">>hello");
        poll_fn(|context| Pin::new(&mut from).poll_shutdown(context)).await.unwrap();
        poll_fn(|context| Pin::new(&mut to).poll_read(context, &mut buffer)).await.unwrap();
        assert_eq!(buffer.filled().len(), 7, "the end");
    }

    run(build, async {
        let (client, server) = connected().await;
        exchange(client, server).await;
        let (mut client, mut server) = connected().await;
        exchange(client.split().1, server.split().0).await;
        let (client, server) = connected().await;
        exchange(client.into_split().1, server.into_split().0).await;
    });
}

#[cfg(feature = "hyper")]
fn streams_and_halves_have_the_traits_of_hyper(build: Build) {
    use core::{future::poll_fn, mem::MaybeUninit, pin::Pin};
    use hyper::rt::{Read, ReadBuf, Write};
    use std::io::IoSlice;

    async fn exchange(mut from: impl Write + Unpin, mut to: impl Read + Unpin) {
        assert!(from.is_write_vectored());
        let write = poll_fn(|context| Pin::new(&mut from).poll_write(context, b"hel"));
        assert_eq!(write.await.unwrap(), 3);
        let parts = [IoSlice::new(b""), IoSlice::new(b"l"), IoSlice::new(b"o")];
        let write = poll_fn(|context| Pin::new(&mut from).poll_write_vectored(context, &parts));
        assert_eq!(write.await.unwrap(), 2);
        poll_fn(|context| Pin::new(&mut from).poll_flush(context)).await.unwrap();
        poll_fn(|context| Pin::new(&mut from).poll_shutdown(context)).await.unwrap();
        let mut memory = [const { MaybeUninit::uninit() }; 8];
        let mut buffer = ReadBuf::uninit(&mut memory);
        buffer.unfilled().put_slice(b">>");
        while buffer.filled().len() < 7 {
            let before = buffer.filled().len();
            let read = poll_fn(|context| Pin::new(&mut to).poll_read(context, buffer.unfilled()));
            read.await.unwrap();
            assert!(buffer.filled().len() > before, "the end came early");
        }
        assert_eq!(buffer.filled(), b">>hello");
        let read = poll_fn(|context| Pin::new(&mut to).poll_read(context, buffer.unfilled()));
        read.await.unwrap();
        assert_eq!(buffer.filled().len(), 7, "the end");
        // A full buffer is no end, and no system call.
        let mut full = ReadBuf::uninit(&mut []);
        let read = poll_fn(|context| Pin::new(&mut to).poll_read(context, full.unfilled()));
        read.await.unwrap();
    }

    run(build, async {
        let (client, server) = connected().await;
        exchange(client, server).await;
        let (client, server) = windlass_task::net::UnixStream::pair().unwrap();
        exchange(client, server).await;
        let (mut client, mut server) = connected().await;
        exchange(client.split().1, server.split().0).await;
        let (client, server) = connected().await;
        exchange(client.into_split().1, server.into_split().0).await;
    });
}

#[cfg(feature = "futures-io")]
fn streams_and_halves_have_the_traits_of_futures_io(build: Build) {
    use core::{future::poll_fn, pin::Pin};
    use futures_io::{AsyncRead, AsyncWrite};
    use std::io::IoSlice;

    async fn exchange(mut from: impl AsyncWrite + Unpin, mut to: impl AsyncRead + Unpin) {
        let parts = [IoSlice::new(b"hel"), IoSlice::new(b"lo")];
        let write = poll_fn(|context| Pin::new(&mut from).poll_write_vectored(context, &parts));
        assert_eq!(write.await.unwrap(), 5);
        poll_fn(|context| Pin::new(&mut from).poll_flush(context)).await.unwrap();
        let mut buffer = [0; 8];
        let read = poll_fn(|context| Pin::new(&mut to).poll_read(context, &mut buffer));
        assert_eq!(read.await.unwrap(), 5);
        poll_fn(|context| Pin::new(&mut from).poll_close(context)).await.unwrap();
        let read = poll_fn(|context| Pin::new(&mut to).poll_read(context, &mut buffer));
        assert_eq!(read.await.unwrap(), 0);
    }

    run(build, async {
        let (client, server) = connected().await;
        exchange(client, server).await;
        let (mut client, mut server) = connected().await;
        exchange(client.split().1, server.split().0).await;
        let (client, server) = connected().await;
        exchange(client.into_split().1, server.into_split().0).await;
    });
}

scenarios! {
    #[cfg(feature = "tokio-io")]
    streams_and_halves_have_the_traits_of_tokio,
    #[cfg(feature = "futures-io")]
    streams_and_halves_have_the_traits_of_futures_io,
    #[cfg(feature = "hyper")]
    streams_and_halves_have_the_traits_of_hyper,
}
