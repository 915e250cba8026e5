//! nats-server alone, as a server of the suite `cluster`. The client speaks its protocol.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass_bench_driver::Error;
use windlass_bench_driver::cluster::start_nats;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{Settings, announce_as};

fn main() -> ExitCode {
    serve()
        .inspect_err(|error| eprintln!("{error}"))
        .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn serve() -> Result<(), Error> {
    Settings::take()?;
    let (mut nats, address) = start_nats()?;
    announce_as(&ServerInfo {
        address,
        receivers: None,
        speaks_nats: true,
        process: nats.id(),
        version: "of the system".to_owned(),
        allocations_at: 0,
    });
    nats.wait()?;
    Ok(())
}
