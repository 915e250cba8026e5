//! `--admin`: metrics, health and status for the operator.

use std::{fs, net::SocketAddr, path::PathBuf, str::FromStr};

use anyhow::{Context as _, bail};
use windlass_server::{Admin, RunningAdmin, StatsHandle, http::Hosts};

use super::{
    args::{Mode, ServeArgs},
    refusal_log::RefusalLog,
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
}

/// The running listener, which ends with the server or when it is dropped.
pub(crate) struct AdminServer {
    _running: RunningAdmin,
    _sockets: Sockets,
}

impl AdminListener {
    /// Opens the listener, if there is to be one.
    pub(crate) fn open(args: &ServeArgs) -> anyhow::Result<Option<Self>> {
        let Some(place) = &args.admin else {
            if args.admin_token_file.is_some() {
                bail!("--admin-token-file needs --admin");
            }
            return Ok(None);
        };
        if args.mode == Mode::Raw {
            bail!("--admin is not available in mode raw");
        }
        let token = args.admin_token_file.as_ref().map(|path| {
            let text = fs::read_to_string(path);
            text.with_context(|| format!("cannot read --admin-token-file {}", path.display()))
        });
        let mut sockets =
            Sockets::open_admin(place, args.backend).context("cannot open the admin listener")?;
        let socket = sockets.take_per_worker()?.into_iter().flatten().next();
        let socket = socket.context("there is one listener")?;
        let refusal_log = RefusalLog::default();
        let mut admin = Admin::listen_on(socket)?
            .backend(args.backend)
            .on_rejected(move |refused| refusal_log.note_rejected_by_admin(refused))
            .hosts(Hosts::parse(&args.host).context("invalid --host")?);
        if let Some(token) = token.transpose()? {
            admin = admin.token(token.trim_end()).context("invalid --admin-token-file")?;
        }
        Ok(Some(Self { admin, sockets }))
    }

    /// The address, in a form for people.
    pub(crate) fn address(&self) -> &str {
        &self.sockets.addresses[0]
    }

    pub(crate) fn start(self, stats: StatsHandle) -> anyhow::Result<AdminServer> {
        let Self { admin, sockets } = self;
        let running = admin
            .start(stats)
            .context("cannot start the admin listener (--admin-token-file sets a token)")?;
        Ok(AdminServer { _running: running, _sockets: sockets })
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
