//! The client of the suites `echo`, `broadcast`, `handshake`, `memory`, `websocket`, `tls`,
//! `cluster`, `scaling`, `fairness`, `fixed-rate` and `startup`, for all servers.
//!
//! It reads requests as lines of JSON, like every measured program, and connects to the server that
//! they name. It must be cheap, because its cost limits the measurement. So it prepares its
//! messages and the expected bytes in advance; a server's unmasked frames have only one form. It
//! compares every byte.

#![deny(unsafe_code)]

mod burst;
mod echo;
mod fan_out;
mod first;
mod frame_cycle;
mod handshakes;
mod http2;
mod idle;
mod link;
mod paced;
mod publish;
mod socket;
mod upgrade;

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass_bench_driver::cluster::ClusterCase;
use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Case, Content, ServerInfo};
use windlass_bench_driver::tls::{TlsCase, TlsHandshake};
use windlass_bench_driver::websocket_cases::WebsocketCase;
use windlass_bench_driver::{Error, Measured, client};

fn main() -> ExitCode {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, a failed connect is reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    client::serve(env!("CARGO_PKG_VERSION"), connect)
}

/// The messages of connections that wait then: plain ones, and compressed ones.
const IDLE: [frame_cycle::MessageSpec; 2] = [
    frame_cycle::MessageSpec { content: Content::Binary, bytes: 64, deflate: false },
    frame_cycle::MessageSpec { content: Content::Json, bytes: 4096, deflate: true },
];

fn connect(case: &Case, server: &ServerInfo) -> Result<Box<dyn Measured>, Error> {
    Ok(match *case.workload() {
        Case::Messages { content, bytes, connections, depth, deflate } => {
            let spec = frame_cycle::MessageSpec { content, bytes, deflate };
            Box::new(echo::EchoClient::connect(server, spec, connections, depth, None)?)
        }
        Case::BurstOfWork { connections, .. } => {
            Box::new(burst::BurstClient::connect(server, 1, connections)?)
        }
        Case::Publish { receivers, bytes, outstanding } => {
            Box::new(publish::PublishClient::connect(server, receivers, bytes, outstanding)?)
        }
        Case::Upgrade { parallel } => Box::new(upgrade::UpgradeClient::new(server, parallel)?),
        Case::IdleConnection { connections, deflate } => Box::new(idle::IdleClient::connect(
            server,
            connections,
            IDLE[usize::from(deflate)],
            None,
        )?),
        Case::WebsocketOnly(WebsocketCase::AxumEcho { bytes, connections, depth }) => {
            let spec = frame_cycle::MessageSpec { content: Content::Binary, bytes, deflate: false };
            Box::new(echo::EchoClient::connect(server, spec, connections, depth, None)?)
        }
        Case::WebsocketOnly(WebsocketCase::Http2Echo { bytes, connections, streams, depth }) => {
            Box::new(http2::Http2Client::connect(server, bytes, connections, streams, depth)?)
        }
        Case::Tls(ref case) => connect_tls(case, server)?,
        Case::Cluster(ClusterCase::NodeEcho { bytes, connections, .. }) => {
            let spec = frame_cycle::MessageSpec { content: Content::Binary, bytes, deflate: false };
            Box::new(echo::EchoClient::connect(server, spec, connections, 1, None)?)
        }
        Case::Cluster(ClusterCase::FanOut { receivers, bytes, outstanding }) => {
            Box::new(fan_out::FanOutClient::connect(server, receivers, bytes, outstanding)?)
        }
        Case::Load(ref case) => connect_load(case, server)?,
        _ => return Err("no case of a server".into()),
    })
}

fn connect_load(case: &LoadCase, server: &ServerInfo) -> Result<Box<dyn Measured>, Error> {
    let spec = |bytes| frame_cycle::MessageSpec { content: Content::Binary, bytes, deflate: false };
    let echo = |bytes, connections, depth| {
        echo::EchoClient::connect(server, spec(bytes), connections, depth, None)
    };
    Ok(match *case {
        LoadCase::Connections { connections } | LoadCase::Workers { connections, .. } => {
            Box::new(echo(20, connections, 1)?)
        }
        LoadCase::HotConnection { depth, bytes, quiet } => {
            let hot = (depth > 0).then(|| echo(bytes, 1, depth)).transpose()?;
            Box::new(paced::PacedClient::beside(hot, echo(20, quiet, 1)?))
        }
        LoadCase::BurstOfOne { burst, others, .. } => {
            Box::new(burst::BurstClient::connect(server, burst, others + 1)?)
        }
        LoadCase::AtRate { per_cent, connections } => {
            Box::new(paced::PacedClient::at_share(per_cent, echo(20, connections, 1)?))
        }
        LoadCase::FirstAnswer => Box::new(first::FirstClient::connect(server, spec(20))?),
    })
}

fn connect_tls(case: &TlsCase, server: &ServerInfo) -> Result<Box<dyn Measured>, Error> {
    Ok(match *case {
        TlsCase::TlsMessages { bytes, connections, depth } => {
            let spec = frame_cycle::MessageSpec { content: Content::Binary, bytes, deflate: false };
            let tls = Some(link::TlsClient::new()?);
            Box::new(echo::EchoClient::connect(server, spec, connections, depth, tls)?)
        }
        TlsCase::TlsUpgrade { handshake: TlsHandshake::None, parallel } => {
            Box::new(upgrade::UpgradeClient::new(server, parallel)?)
        }
        TlsCase::TlsUpgrade { handshake, parallel } => {
            Box::new(handshakes::TlsUpgradeClient::new(server, handshake, parallel)?)
        }
        TlsCase::TlsFlood { connections, handshakes } => {
            Box::new(handshakes::FloodClient::connect(server, connections, handshakes)?)
        }
        TlsCase::TlsIdleConnection { connections, bytes, tls } => {
            let tls = tls.then(link::TlsClient::new).transpose()?;
            let spec = frame_cycle::MessageSpec { bytes, ..IDLE[0] };
            Box::new(idle::IdleClient::connect(server, connections, spec, tls)?)
        }
    })
}
