//! `--admin`: metrics, health and status for the operator.

use std::{
    fs, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc, str::FromStr, time::Duration,
};

use anyhow::{Context as _, ensure};
use windlass_server::{Admin, AdminToken, RunningAdmin, StatsHandle, http::Hosts};

use super::{
    args::{Mode, ServeArgs},
    hand_over::Passed,
    refusal_log,
    reload::{Apply, Part},
    sockets::Sockets,
};

/// Where the admin listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminPlace {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for AdminPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        Err("it is neither an IP address with a port, nor the path of a Unix socket, with a /")
    }
}

/// The admin listener before the server runs. Its address is taken, so that the server does not
/// start if it cannot be.
pub(crate) struct AdminListener {
    admin: Admin,
    /// Removes the file of a Unix socket at the end.
    sockets: Sockets,
    /// For a hand-over.
    copies: Vec<(String, OwnedFd)>,
}

/// The running listener, which ends with the server or when it is dropped.
pub(crate) struct AdminServer {
    running: RunningAdmin,
    sockets: Sockets,
}

/// Reads the token, if there is one.
fn read_token(args: &ServeArgs) -> anyhow::Result<Option<AdminToken>> {
    let Some(path) = &args.admin_token_file else { return Ok(None) };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read --admin-token-file {}", path.display()))?;
    AdminToken::new(text.trim_end()).context("invalid --admin-token-file").map(Some)
}

fn hosts(args: &ServeArgs) -> anyhow::Result<Hosts> {
    Hosts::parse(&args.host).context("invalid --host")
}

/// Checks the options of the listener, and the file that they name.
pub(crate) fn check(args: &ServeArgs) -> anyhow::Result<()> {
    ensure!(args.admin.is_some() || args.admin_token_file.is_none(), "{TOKEN_ALONE}");
    ensure!(args.admin.is_none() || args.mode != Mode::Raw, "{NOT_IN_RAW}");
    let (token, _) = (read_token(args)?, hosts(args)?);
    let is_local = match &args.admin {
        Some(AdminPlace::Tcp(address)) => address.ip().to_canonical().is_loopback(),
        _ => true,
    };
    ensure!(is_local || token.is_some(), "{TOKEN_NEEDED}");
    Ok(())
}

const TOKEN_ALONE: &str = "--admin-token-file needs --admin";
const NOT_IN_RAW: &str = "--admin is not available in mode raw";
const TOKEN_NEEDED: &str = "cannot start the admin listener (--admin-token-file sets a token)";

impl AdminServer {
    /// Makes /readyz answer 503.
    pub(crate) fn announce_shutdown(&self) {
        self.running.announce_shutdown();
    }

    /// Stops accepting: another server has the same socket.
    pub(crate) fn stop_accepting(&self) {
        self.running.stop_accepting();
    }

    /// The file of the socket is another server's from now on, if that has taken it.
    pub(crate) fn leave_file(&self, taken: &[String]) {
        self.sockets.leave_files(taken);
    }

    /// The file of the socket is this server's from now on.
    pub(crate) fn own_file(&self) {
        self.sockets.own_files();
    }

    /// Returns the part of the configuration that may change.
    pub(crate) fn part(self: &Rc<Self>) -> Part {
        let admin = Rc::clone(self);
        let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
            let (token, hosts, admin) = (read_token(args)?, hosts(args)?, Rc::clone(&admin));
            admin.running.check_access(token.as_ref()).context("--admin-token-file is missing")?;
            // It was checked just now.
            Ok(Box::new(move || _ = admin.running.set_access(token, hosts)))
        };
        Part { options: &["admin-token-file", "host"], prepare: Box::new(prepare) }
    }
}

impl AdminListener {
    /// Opens the listener, if there is to be one.
    pub(crate) fn open(args: &ServeArgs, passed: &mut Passed) -> anyhow::Result<Option<Self>> {
        check(args)?;
        let Some(place) = &args.admin else {
            return Ok(None);
        };
        let token = read_token(args)?;
        let mut sockets = Sockets::open_admin(place, args.backend, passed)
            .context("cannot open the admin listener")?;
        let copies = sockets.copies().context("cannot copy the socket")?;
        let socket = sockets.take_per_worker(false)?.into_iter().flatten().next();
        let socket = socket.context("there is one listener")?;
        let mut admin = Admin::listen_on(socket)?
            .backend(args.backend)
            .stall_limit(Duration::from_secs(args.stall_limit.into()))
            .on_rejected(refusal_log::note_rejected_by_admin)
            .hosts(hosts(args)?);
        if let Some(token) = token {
            admin = admin.with_token(token);
        }
        Ok(Some(Self { admin, sockets, copies }))
    }

    /// The address, in a form for people.
    pub(crate) fn address(&self) -> &str {
        &self.sockets.addresses[0]
    }

    /// Takes copies of the socket out, with its name.
    pub(crate) fn take_copies(&mut self) -> Vec<(String, OwnedFd)> {
        std::mem::take(&mut self.copies)
    }

    pub(crate) fn start(self, stats: StatsHandle) -> anyhow::Result<AdminServer> {
        let Self { admin, sockets, .. } = self;
        let running = admin.start(stats).context(TOKEN_NEEDED)?;
        Ok(AdminServer { running, sockets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_path() {
        assert_eq!("[::1]:9".parse(), Ok(AdminPlace::Tcp("[::1]:9".parse().unwrap())));
        assert_eq!("/run/a".parse(), Ok(AdminPlace::Unix("/run/a".into())));
        assert_eq!("./a".parse(), Ok(AdminPlace::Unix("./a".into())));
        for nonsense in ["", "9001", "localhost:9001", "socket"] {
            assert!(nonsense.parse::<AdminPlace>().is_err(), "{nonsense}");
        }
    }
}
