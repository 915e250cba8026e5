//! What the service manager is told (sd_notify(3)), if it has asked for it by `NOTIFY_SOCKET`.

use std::{env, time::Duration};

use rustix::process::Pid;
use sd_notify::NotifyState;

/// Tells the service manager that the server serves at these addresses.
pub(crate) fn ready(addresses: &[String]) {
    let status = format!("serving at {}", addresses.join(" "));
    send(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The configuration is read again. A unit of the type `notify-reload` needs the time in the same
/// message.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not told about the reload"),
    }
}

/// The reload is over, whether it has changed something or not.
pub(crate) fn reloaded() {
    send(&[NotifyState::Ready]);
}

/// Another process is the service from now on.
pub(crate) fn main_process(process: Pid) {
    send(&[NotifyState::MainPid(process.as_raw_nonzero().get().unsigned_abs())]);
}

/// The server shuts down.
pub(crate) fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Returns how often the service manager is told [`alive`], if it wants to know: several times in
/// the time after which it takes the server for hung, and at least once a second, so that a hang is
/// seen soon. A server that has `taken_over` is the service from then on, although `WATCHDOG_PID`
/// is the first one.
pub(crate) fn watchdog_period(taken_over: bool) -> Option<Duration> {
    let limit = if taken_over {
        let limit = env::var("WATCHDOG_USEC").ok().and_then(|limit| limit.parse().ok());
        limit.map(Duration::from_micros)
    } else {
        sd_notify::watchdog_enabled()
    };
    period_of(limit?)
}

fn period_of(limit: Duration) -> Option<Duration> {
    Some((limit / 4).min(Duration::from_secs(1))).filter(|period| !period.is_zero())
}

/// All workers have finished a turn lately.
pub(crate) fn alive() {
    send(&[NotifyState::Watchdog]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_often_enough() {
        let period = |millis| period_of(Duration::from_millis(millis)).map(|p| p.as_millis());
        assert_eq!([200, 2000, 30_000].map(period), [Some(50), Some(500), Some(1000)]);
        assert_eq!(period(0), None);
    }
}
