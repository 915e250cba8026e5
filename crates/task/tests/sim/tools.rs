//! What the tests share.

use std::net::{IpAddr, SocketAddr};

use windlass::{
    Reactor,
    sim::{Faults, Host, Sim},
};
use windlass_task::Executor;
use windlass_testkit::faults::again;

pub(crate) fn calm() -> Sim {
    Sim::new(1, Faults::calm())
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(crate) fn host(sim: &Sim, last: u8) -> Host {
    sim.host(IpAddr::from([10, 0, 0, last]))
}

/// An executor at the host 10.0.0.`last`. A fault may strike its building.
pub(crate) fn executor(sim: &Sim, last: u8) -> Executor {
    let host = host(sim, last);
    again(|| Executor::builder().reactor(Reactor::builder().sim(&host)).build())
}

/// The same for a future.
macro_rules! again_async {
    ($call:expr) => {
        loop {
            match $call.await {
                Ok(made) => break made,
                Err(_) => windlass_task::yield_now().await,
            }
        }
    };
}
pub(crate) use again_async;

/// Without another owner of a socket, who ends its output behind the stream's back: the peer takes
/// a part for the whole then.
pub(crate) fn whole(faults: Faults) -> Faults {
    Faults { half_close: 0, ..faults }
}
