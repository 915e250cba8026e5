//! fastwebsockets for the workloads of `windlass-bench`.

#![deny(unsafe_code)]

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use fastwebsockets::{FragmentCollector, OpCode, Role, WebSocket, WebSocketError, unmask};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass_bench_driver::unmask::UnmaskSubject;
use windlass_bench_driver::websocket::{EngineSubject, Wire};
use windlass_bench_driver::{Error, Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "fastwebsockets");
    Program { version, suites: vec![Suite::engine::<Connection>(), Suite::unmask::<Unmask>()] }
        .serve()
}

/// The wire as a stream that is always writable, and pending when all its bytes have been read.
struct Stream(Wire);

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.0.recv_with(buffer.remaining(), |bytes| buffer.put_slice(bytes)) {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.send(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(self.0.send_vectored(pieces.iter().map(|piece| &**piece))))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Task = Pin<Box<dyn Future<Output = Result<(), WebSocketError>>>>;

/// The task of its documentation, polled once per round.
struct Connection(Task);

impl EngineSubject for Connection {
    type Thread = ();

    fn engine_bytes() -> usize {
        size_of::<FragmentCollector<Stream>>()
    }

    fn new(wire: Wire, (): &mut ()) -> Result<Self, Error> {
        Ok(Self(Box::pin(echo(wire))))
    }

    fn round(&mut self, (): &mut ()) -> Result<(), Error> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Ok(()),
            Poll::Ready(result) => Err(format!("the connection has ended: {result:?}").into()),
        }
    }
}

async fn echo(wire: Wire) -> Result<(), WebSocketError> {
    let mut socket = FragmentCollector::new(WebSocket::after_handshake(Stream(wire), Role::Server));
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => socket.write_frame(frame).await?,
            _ => {}
        }
    }
}

struct Unmask;

impl UnmaskSubject for Unmask {
    fn new(_: usize) -> Result<Self, Error> {
        Ok(Self)
    }

    fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, key: [u8; 4]) -> usize {
        let start = payload.start;
        unmask(&mut buffer[payload], key);
        start
    }
}
