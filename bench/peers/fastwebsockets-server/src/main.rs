//! A server of fastwebsockets, like its example of an echo server, for the suites of
//! `windlass-bench` that measure servers.

#![deny(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use fastwebsockets::{FragmentCollector, Frame, OpCode, Payload, WebSocketError, upgrade};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::sync::broadcast::{self, Sender};
use windlass_bench_driver::server::{MESSAGE_MAX, Mode, PUBLISHER, Settings};
use windlass_bench_driver::work;
use windlass_bench_tokio_server::{self as tokio_server, LAG_MAX};

fn main() -> ExitCode {
    tokio_server::run("fastwebsockets", |Settings { mode, work, .. }| {
        let all = Sender::new(LAG_MAX);
        Ok(move |stream| {
            let all = all.clone();
            async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let service =
                    service_fn(|request| server_upgrade(request, mode, work, all.clone()));
                // A client that disconnects before its upgrade is ignored.
                let _ = http1::Builder::new().serve_connection(io, service).with_upgrades().await;
            }
        })
    })
}

async fn server_upgrade(
    mut request: Request<Incoming>,
    mode: Mode,
    work: Duration,
    all: Sender<Bytes>,
) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let (response, future) = upgrade::upgrade(&mut request)?;
    let is_publisher = request.uri().path() == PUBLISHER;
    tokio::spawn(tokio::task::unconstrained(async move {
        let Ok(mut socket) = future.await else { return };
        socket.set_max_message_size(MESSAGE_MAX);
        // It ends with an error when its client disconnects.
        let _ = match mode {
            Mode::Echo => echo(FragmentCollector::new(socket), work).await,
            Mode::Broadcast if is_publisher => publish(FragmentCollector::new(socket), &all).await,
            Mode::Broadcast => receive(socket, all.subscribe()).await,
        };
    }));
    Ok(response)
}

type Io = hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>;

async fn echo(mut socket: FragmentCollector<Io>, time: Duration) -> Result<(), WebSocketError> {
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => {
                work(time);
                socket.write_frame(frame).await?;
            }
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
