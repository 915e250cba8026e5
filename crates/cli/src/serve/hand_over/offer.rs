//! `--hand-over`: the old server.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustix::{
    fs::{Mode, fchmod},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
        socket_with,
    },
    process::{Pid, getpid},
};

use super::{
    Passed,
    wire::{Packet, SOCKETS_MAX, check_peer, receive, send, set_timeout},
};
use crate::serve::{
    notify,
    socket_file::{SocketFile, replacing_abandoned},
};

/// Time after which accepting is tried again, if there is no descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A socket on which the next server may ask. Nobody is answered before [`start`](Self::start).
pub(crate) struct Offer {
    name: String,
    listener: OwnedFd,
    file: SocketFile,
}

/// The answering thread.
pub(crate) struct RunningOffer {
    shared: Arc<Mutex<Shared>>,
    wakes: UnixStream,
    /// Kept open: the end of the stream would be readable too.
    _waker: UnixStream,
    file: SocketFile,
}

/// What the thread shares with the server.
#[derive(Default)]
struct Shared {
    /// The sockets with their names. `None`: there is nothing to offer any more.
    sockets: Option<Vec<(String, OwnedFd)>>,
    granted: Option<Granted>,
    /// Whether a new server has asked for the sockets, and may get the file with them.
    is_asked: bool,
}

/// The new server has the sockets.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    /// The new server's process.
    pub(crate) to: Pid,
    /// The names of the sockets that it serves.
    pub(crate) taken: Vec<String>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Nothing panics while the lock is held.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Offer {
    /// Opens the socket, unless another server has passed it.
    pub(crate) fn open(path: &Path, passed: &mut Passed) -> anyhow::Result<Self> {
        let name = format!("hand-over {}", path.display());
        let opened = Self::open_at(path, &name, passed);
        let opened = opened.with_context(|| format!("cannot listen at {}", path.display()));
        let (listener, file) = opened.context("cannot offer the listening sockets")?;
        Ok(Self { name, listener, file })
    }

    fn open_at(path: &Path, name: &str, passed: &mut Passed) -> io::Result<(OwnedFd, SocketFile)> {
        if let Some(listener) = passed.take(name).and_then(|sockets| sockets.into_iter().next()) {
            return Ok((listener, SocketFile::passed(path, name)?));
        }
        let listener = replacing_abandoned(path, || listen_at(path), |errno| errno.kind())?;
        Ok((listener, SocketFile::made_at(path, name)?))
    }

    /// The file is this server's from now on.
    pub(crate) fn own_file(&self) {
        self.file.set_own(true);
    }

    /// Answers on a thread of its own. The sockets are passed together with the one of the offer.
    pub(crate) fn start(
        self,
        mut sockets: Vec<(String, OwnedFd)>,
        limit: Duration,
    ) -> anyhow::Result<RunningOffer> {
        let Self { name, listener, file } = self;
        sockets.push((name, listener.try_clone().context("cannot copy a socket")?));
        let shared = Arc::new(Mutex::new(Shared { sockets: Some(sockets), ..Shared::default() }));
        let (wakes, mut waker) = UnixStream::pair().context("cannot open a pair of sockets")?;
        let kept = waker.try_clone().context("cannot copy a socket")?;
        let of_thread = Arc::clone(&shared);
        let answer = move || loop {
            let taker = match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(taker) => taker,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    tracing::warn!(error = %io::Error::from(errno), "cannot accept a hand-over");
                    // sleep: no event tells when there is a descriptor.
                    thread::sleep(ACCEPT_RETRY);
                    continue;
                }
            };
            match hand_over(&taker, &of_thread, limit) {
                Ok(granted) => {
                    lock(&of_thread).granted = Some(granted);
                    // It fails only if the server has ended.
                    let _ = waker.write_all(&[1]);
                    return;
                }
                Err(error) => {
                    lock(&of_thread).is_asked = false;
                    let error = format!("{error:#}");
                    tracing::warn!(%error, "hand-over failed; this server goes on");
                }
            }
        };
        let thread = thread::Builder::new().name("wl-hand-over".to_owned());
        thread.spawn(answer).context("cannot start a thread")?;
        Ok(RunningOffer { shared, wakes, _waker: kept, file })
    }
}

impl RunningOffer {
    /// Returns the descriptor that is readable when the sockets were granted.
    pub(crate) fn wakes(&self) -> io::Result<UnixStream> {
        self.wakes.try_clone()
    }

    /// Returns what was granted.
    pub(crate) fn granted(&self) -> Option<Granted> {
        lock(&self.shared).granted.clone()
    }

    /// Closes the copies of the sockets: nobody can take them any more. Removes the file, so that a
    /// server that starts during the drain can offer its own sockets there.
    pub(crate) fn withdraw(&self) {
        let mut shared = lock(&self.shared);
        let sockets = shared.sockets.take();
        if !shared.is_asked {
            self.file.remove();
        }
        drop(shared);
        drop(sockets);
    }

    /// The file is another server's from now on, if that has taken it.
    pub(crate) fn leave_file(&self, taken: &[String]) {
        if taken.contains(&self.file.name) {
            self.file.set_own(false);
        }
    }
}

/// Reads the byte of a grant. Returns whether there was one.
pub(crate) fn take_wake(mut wakes: &UnixStream) -> bool {
    matches!(wakes.read(&mut [0; 1]), Ok(1))
}

/// Listens at a path that only this user can use.
fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode of the socket (unix_bind() in net/unix/af_unix.c), so there is no
    // moment in which others may connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &address)?;
    listen(&socket, 8)?;
    Ok(socket)
}

/// Hands all sockets over to a process. Returns an error if it does not take them.
fn hand_over(taker: &OwnedFd, shared: &Mutex<Shared>, limit: Duration) -> anyhow::Result<Granted> {
    set_timeout(taker, limit).context("cannot set a time limit")?;
    let to = check_peer(taker)?;
    tracing::info!(process = to.as_raw_nonzero().get(), "handing over");
    let copy = |(name, socket): &(String, OwnedFd)| -> io::Result<(String, OwnedFd)> {
        Ok((name.clone(), socket.try_clone()?))
    };
    let mut offered = lock(shared);
    let sockets = offered.sockets.as_ref();
    let sockets = sockets.map(|all| all.iter().map(copy).collect::<io::Result<Vec<_>>>());
    let Some(sockets) = sockets else { bail!("this server is shutting down") };
    offered.is_asked = true;
    drop(offered);
    let sockets = sockets.context("cannot copy the sockets")?;
    let parts = sockets.chunks(SOCKETS_MAX);
    let last = parts.len();
    for (at, part) in parts.enumerate() {
        let names = part.iter().map(|(name, _)| name.clone()).collect();
        let descriptors: Vec<BorrowedFd<'_>> = part.iter().map(|(_, fd)| fd.as_fd()).collect();
        let process = getpid().as_raw_nonzero().get();
        let packet = Packet::Sockets { process, names, is_last: at + 1 == last };
        send(taker, &packet, &descriptors).context("cannot pass the sockets")?;
    }
    drop(sockets);
    let waited = "the new server has ended, or was not ready in time (--hand-over-timeout)";
    let (packet, _) = receive(taker).context(waited)?;
    let Packet::Ready { taken } = packet else { bail!("an unexpected answer: {packet:?}") };
    ensure!(!taken.is_empty(), "the new server serves none of the sockets");
    // The manager must know it before the new server says anything.
    notify::main_process(to);
    if let Err(error) = send(taker, &Packet::Granted, &[]) {
        notify::main_process(getpid());
        return Err(error).context("the new server has ended");
    }
    lock(shared).sockets = None;
    Ok(Granted { to, taken })
}
