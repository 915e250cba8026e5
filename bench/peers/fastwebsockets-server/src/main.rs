//! A server of fastwebsockets, like its example of an echo server, for the suites of
//! `windlass-bench` that measure servers.

#![deny(unsafe_code)]

use std::process::ExitCode;

use fastwebsockets::{FragmentCollector, Frame, OpCode, Payload, WebSocketError, upgrade};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::broadcast::{self, Sender};
use windlass_bench_driver::server::{ANY_PORT, MESSAGE_MAX, Mode, PUBLISHER, Settings, announce};
use windlass_bench_driver::{Error, locked_version};

/// Maximum number of messages by which a receiver may lag: more than any case has in flight.
const LAG_MAX: usize = 1024;

fn main() -> ExitCode {
    let served = Settings::take().and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(serve(settings.mode))
    });
    served
        .inspect_err(|error| eprintln!("{error}"))
        .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

async fn serve(mode: Mode) -> Result<(), Error> {
    let listener = TcpListener::bind(ANY_PORT).await?;
    announce(
        listener.local_addr()?,
        &locked_version(include_str!("../../Cargo.lock"), "fastwebsockets"),
    );
    let all = broadcast::Sender::new(LAG_MAX);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let all = all.clone();
        tokio::spawn(async move {
            let io = hyper_util::rt::TokioIo::new(stream);
            let service = service_fn(|request| server_upgrade(request, mode, all.clone()));
            // A client that disconnects before its upgrade is ignored.
            let _ = http1::Builder::new().serve_connection(io, service).with_upgrades().await;
        });
    }
}

async fn server_upgrade(
    mut request: Request<Incoming>,
    mode: Mode,
    all: Sender<Bytes>,
) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let (response, future) = upgrade::upgrade(&mut request)?;
    let is_publisher = request.uri().path() == PUBLISHER;
    tokio::spawn(tokio::task::unconstrained(async move {
        let Ok(mut socket) = future.await else { return };
        socket.set_max_message_size(MESSAGE_MAX);
        // It ends with an error when its client disconnects.
        let _ = match mode {
            Mode::Echo => echo(FragmentCollector::new(socket)).await,
            Mode::Broadcast if is_publisher => publish(FragmentCollector::new(socket), &all).await,
            Mode::Broadcast => receive(socket, all.subscribe()).await,
        };
    }));
    Ok(response)
}

type Io = hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>;

async fn echo(mut socket: FragmentCollector<Io>) -> Result<(), WebSocketError> {
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => socket.write_frame(frame).await?,
            _ => {}
        }
    }
}

async fn publish(
    mut socket: FragmentCollector<Io>,
    all: &Sender<Bytes>,
) -> Result<(), WebSocketError> {
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            // This fails if there are no receivers.
            OpCode::Text | OpCode::Binary => _ = all.send(Bytes::copy_from_slice(&frame.payload)),
            _ => {}
        }
    }
}

async fn receive(
    mut socket: fastwebsockets::WebSocket<Io>,
    mut all: broadcast::Receiver<Bytes>,
) -> Result<(), WebSocketError> {
    while let Ok(message) = all.recv().await {
        socket.write_frame(Frame::binary(Payload::Borrowed(&message))).await?;
    }
    Ok(())
}
