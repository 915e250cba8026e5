//! Settings of a worker that change while it runs.

use windlass_ws::EngineLimits;

use crate::{
    api::{Options, RateLimits},
    http::{Hosts, Origins, Proxies},
};

/// The settings that each worker has a copy of.
#[derive(Debug)]
pub(crate) struct Reconfiguration {
    pub(crate) origins: Origins,
    pub(crate) hosts: Hosts,
    pub(crate) limits: EngineLimits,
    pub(crate) rates: RateLimits,
    pub(crate) proxies: Proxies,
    pub(crate) connections_max: usize,
    /// That, and those that are accepted to reject their requests.
    pub(crate) accepted_max: usize,
}

impl Reconfiguration {
    pub(crate) fn of(options: &Options) -> Self {
        let Options { origins, hosts, limits, rates, proxies, connections_max, .. } = options;
        Self {
            origins: origins.clone(),
            hosts: hosts.clone(),
            limits: *limits,
            rates: rates.clone(),
            proxies: proxies.clone(),
            connections_max: *connections_max,
            accepted_max: options.accepted_max(),
        }
    }
}
