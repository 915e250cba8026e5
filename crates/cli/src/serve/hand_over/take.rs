//! `--take-over`: the new server.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    Passed,
    wire::{Packet, check_peer, receive, send, set_timeout},
};

/// Sockets that were received and not yet granted.
pub(crate) struct TakeOver {
    path: PathBuf,
    socket: OwnedFd,
    /// The old server.
    from: Pid,
    process: OwnedFd,
}

impl TakeOver {
    /// Receives the sockets of the server at this path.
    pub(crate) fn begin(path: &Path, limit: Duration) -> anyhow::Result<(Self, Passed)> {
        let begun = Self::receive(path, limit);
        begun.with_context(|| format!("cannot take over from the server at {}", path.display()))
    }

    fn receive(path: &Path, limit: Duration) -> anyhow::Result<(Self, Passed)> {
        let socket = connected(path).context("no server offers its sockets there")?;
        set_timeout(&socket, limit).context("cannot set a time limit")?;
        check_peer(&socket)?;
        let mut sockets = Vec::new();
        let from = loop {
            let (packet, descriptors) =
                receive(&socket).context("the server has refused, or did not answer in time")?;
            let Packet::Sockets { process, names, is_last } = packet else {
                bail!("an unexpected message: {packet:?}")
            };
            ensure!(names.len() == descriptors.len(), "the names do not fit to the sockets");
            sockets.extend(names.into_iter().zip(descriptors));
            if is_last {
                break Pid::from_raw(process).context("the server has no process")?;
            }
        };
        let process = pidfd_open(from, PidfdFlags::empty()).context("the server has ended")?;
        Ok((Self { path: path.to_owned(), socket, from, process }, Passed::of(sockets)))
    }

    /// Says that this server accepts, and waits for the grant.
    pub(crate) fn finish(self, taken: Vec<String>) -> anyhow::Result<()> {
        let finished = self.ask(taken);
        let path = self.path.display();
        finished.with_context(|| format!("cannot take over from the server at {path}"))
    }

    fn ask(&self, taken: Vec<String>) -> anyhow::Result<()> {
        let asked = send(&self.socket, &Packet::Ready { taken }, &[]);
        match asked.and_then(|()| receive(&self.socket)) {
            Ok((Packet::Granted, _)) => {
                tracing::info!(process = self.from.as_raw_nonzero().get(), "taken over");
                Ok(())
            }
            Ok((packet, _)) => bail!("an unexpected answer: {packet:?}"),
            // If the old server has died, somebody must serve its clients.
            Err(_) if self.has_ended() => {
                tracing::warn!("the old server has ended before it granted its sockets");
                Ok(())
            }
            Err(error) => Err(error).context("that server goes on"),
        }
    }

    fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&now)), Ok(1))
    }
}

fn connected(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &address)?;
    Ok(socket)
}
