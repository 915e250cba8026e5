//! A server of yawc for the suite `websocket` of `windlass-bench`, with the settings that its
//! documentation and its own benchmarks have for the traffic to come.

#![deny(unsafe_code)]

mod echo;

use std::process::ExitCode;

use futures_util::SinkExt;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::sync::broadcast::{self, Sender};
use tokio::task::unconstrained;
use windlass_bench_driver::server::{Mode, PUBLISHER, Traffic};
use windlass_bench_tokio_server::{self as tokio_server, LAG_MAX};
use yawc::{Frame, HttpStream, OpCode, Options, Result, WebSocket};

fn main() -> ExitCode {
    tokio_server::run("yawc", |settings| {
        let server = Server {
            mode: settings.mode,
            traffic: settings.traffic,
            options: echo::options(&settings),
            all: Sender::new(LAG_MAX),
        };
        Ok(move |stream| {
            let server = server.clone();
            async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let service = service_fn(|request| upgrade(request, server.clone()));
                // A client that disconnects before its upgrade is ignored.
                let _ = http1::Builder::new().serve_connection(io, service).with_upgrades().await;
            }
        })
    })
}

#[derive(Clone)]
struct Server {
    mode: Mode,
    traffic: Traffic,
    options: Options,
    all: Sender<Bytes>,
}

async fn upgrade(mut request: Request<Incoming>, server: Server) -> Result<Response<Empty<Bytes>>> {
    let (response, future) = WebSocket::upgrade_with_options(&mut request, server.options.clone())?;
    let is_publisher = request.uri().path() == PUBLISHER;
    tokio::spawn(unconstrained(async move {
        let Ok(mut socket) = future.await else { return };
        // It ends with an error when its client disconnects.
        let _ = match server.mode {
            Mode::Echo => echo::run(&mut socket, server.traffic).await,
            Mode::Broadcast if is_publisher => publish(&mut socket, &server.all).await,
            Mode::Broadcast => receive(&mut socket, server.all.subscribe()).await,
        };
    }));
    Ok(response)
}

async fn publish(socket: &mut WebSocket<HttpStream>, all: &Sender<Bytes>) -> Result<()> {
    loop {
        let frame = socket.next_frame().await?;
        match frame.opcode() {
            // This fails if there are no receivers.
            OpCode::Text | OpCode::Binary => _ = all.send(frame.into_payload()),
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}

async fn receive(
    socket: &mut WebSocket<HttpStream>,
    mut all: broadcast::Receiver<Bytes>,
) -> Result<()> {
    while let Ok(message) = all.recv().await {
        socket.feed(Frame::binary(message)).await?;
        while let Ok(message) = all.try_recv() {
            socket.feed(Frame::binary(message)).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}
