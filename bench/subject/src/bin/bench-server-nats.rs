//! nats-server alone, as a server of the suite `cluster`. The client speaks its protocol.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass_bench_driver::Error;
use windlass_bench_driver::cluster::start_nats;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{self, Settings, announce_as};

fn main() -> ExitCode {
    server::run(serve)
}

fn serve(_: Settings) -> Result<(), Error> {
    let (mut nats, address) = start_nats()?;
    announce_as(&ServerInfo {
        speaks_nats: true,
        process: nats.id(),
        ..ServerInfo::new(address, "of the system")
    });
    nats.wait()?;
    Ok(())
}
