//! `--admin`: metrics, health, status and connections for the operator.

use std::{
    fs, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc, str::FromStr, time::Duration,
};

use anyhow::{Context as _, ensure};
use windlass_server::{
    Admin, AdminDisconnect, AdminToken, RunningAdmin, StatsHandle, http::Hosts, printable,
};

use super::{
    args::{Mode, ServeArgs},
    hand_over::Passed,
    refusal_log,
    reload::{Apply, Part},
    sockets::Sockets,
    tls::ServerTls,
};

/// Where the admin listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminPlace {
    Tcp(SocketAddr),
    /// The same with TLS.
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for AdminPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let of_scheme = |scheme: &str| {
            let place = text.strip_prefix(scheme)?;
            place.strip_suffix('/').unwrap_or(place).parse().ok()
        };
        if let Some(address) = text.parse().ok().or_else(|| of_scheme("http://")) {
            return Ok(Self::Tcp(address));
        }
        if let Some(address) = of_scheme("https://") {
            return Ok(Self::Tls(address));
        }
        if text.contains('/') && !text.contains("://") {
            return Ok(Self::Unix(text.into()));
        }
        Err("it is neither an IP address with a port, perhaps with https:// before it, nor the \
             path of a Unix socket, with a /")
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
    ensure!(args.admin.is_some() || !args.admin_open_health, "{HEALTH_ALONE}");
    let has_tls = matches!(args.admin, Some(AdminPlace::Tls(_)));
    ensure!(args.tls.is_on() || !has_tls, "{TLS_NEEDED}");
    let (token, _) = (read_token(args)?, hosts(args)?);
    let is_local = match &args.admin {
        Some(AdminPlace::Tcp(address) | AdminPlace::Tls(address)) => {
            address.ip().to_canonical().is_loopback()
        }
        _ => true,
    };
    ensure!(is_local || token.is_some(), "{TOKEN_NEEDED}");
    Ok(())
}

const TOKEN_ALONE: &str = "--admin-token-file needs --admin";
const HEALTH_ALONE: &str = "--admin-open-health needs --admin";
const TLS_NEEDED: &str = "--admin https:// needs a certificate: add --tls-cert and --tls-key, or \
                          --tls-self-signed";
const NOT_IN_RAW: &str = "--admin is not available in mode raw";
const TOKEN_NEEDED: &str = "cannot start the admin listener (--admin-token-file sets a token)";

impl AdminServer {
    /// Makes /readyz answer 503.
    pub(crate) fn announce_shutdown(&self) {
        self.running.announce_shutdown();
    }

    /// Counts an attempt to read the configuration again.
    pub(crate) fn note_reload(&self, has_succeeded: bool) {
        self.running.note_reload(has_succeeded);
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
    pub(crate) fn open(
        args: &ServeArgs,
        tls: Option<&ServerTls>,
        passed: &mut Passed,
    ) -> anyhow::Result<Option<Self>> {
        check(args)?;
        let Some(place) = &args.admin else {
            return Ok(None);
        };
        let token = read_token(args)?;
        let mut sockets = Sockets::open_admin(place, args.backend, passed)
            .context("cannot open the admin listener")?;
        let copies = sockets.copies().context("cannot copy the socket")?;
        let has_tls = matches!(place, AdminPlace::Tls(_));
        let socket = sockets.take_per_worker(has_tls)?.into_iter().flatten().next();
        let socket = socket.context("there is one listener")?;
        let mut admin = Admin::listen_on(socket)?
            .backend(args.backend)
            .stall_limit(Duration::from_secs(args.stall_limit.into()))
            .open_health(args.admin_open_health)
            .cluster_required(args.cluster.cluster_required)
            .on_rejected(refusal_log::note_rejected_by_admin)
            .on_disconnected(log_disconnect)
            .hosts(hosts(args)?);
        if let Some(token) = token {
            admin = admin.with_token(token);
        }
        if let Some(tls) = tls.filter(|_| has_tls) {
            admin = admin.with_tls(tls.sessions());
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

/// Each request has a line: it comes from the operator.
fn log_disconnect(request: &AdminDisconnect<'_>) {
    let AdminDisconnect { peer, by, target, done, .. } = *request;
    let (target, count, complete) = (printable(target), done.count, done.is_complete);
    tracing::info!(%peer, by, %target, count, complete, "clients disconnected by the operator");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_path() {
        assert_eq!("[::1]:9".parse(), Ok(AdminPlace::Tcp("[::1]:9".parse().unwrap())));
        assert_eq!("/run/a".parse(), Ok(AdminPlace::Unix("/run/a".into())));
        assert_eq!("./a".parse(), Ok(AdminPlace::Unix("./a".into())));
        assert_eq!("http://[::1]:9/".parse(), Ok(AdminPlace::Tcp("[::1]:9".parse().unwrap())));
        assert_eq!("https://[::1]:9".parse(), Ok(AdminPlace::Tls("[::1]:9".parse().unwrap())));
        for nonsense in ["", "9001", "localhost:9001", "socket", "https://localhost:1", "tcp://a"] {
            assert!(nonsense.parse::<AdminPlace>().is_err(), "{nonsense}");
        }
    }
}
