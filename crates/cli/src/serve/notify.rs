//! What the service manager is told (sd_notify(3)), if it has asked for it by `NOTIFY_SOCKET`.

use std::time::Duration;

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

/// Returns how often the service manager wants to hear [`alive`]: twice in the time after which it
/// takes the server for hung.
pub(crate) fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|period| !period.is_zero())
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
