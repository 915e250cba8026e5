//! The life of sockets: from socket(2) to close(2).

use rustix::io::Errno;

use crate::choices::Track;
use crate::faults::Fault;
use crate::ids::{Fd, HostId, SimAddr, SocketKind};
use crate::kernel::state::State;
use crate::object::conn::{Conn, End, Stage};
use crate::object::flow::{Flow, Segment};
use crate::object::{Backlog, Kind, Socket, Watch};
use crate::slab::Key;
use crate::trace::What;
use std::collections::VecDeque;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Shutdown};

/// The address of a socket that is not bound.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl State {
    pub(super) fn socket(&mut self, host: HostId, kind: SocketKind) -> Result<Fd, Errno> {
        self.fail(Fault::NoBuffers, None, Errno::NOBUFS)?;
        let object = match kind {
            SocketKind::Udp => Kind::Udp(Box::default()),
            SocketKind::Tcp | SocketKind::Unix => Kind::Socket(Box::new(Socket::new(kind))),
        };
        self.open(host, object)
    }

    /// The bytes that a direction of a new stream holds.
    fn capacity(&mut self, set: Option<usize>) -> usize {
        let (min, max) = (self.faults.buffer_min.max(1), self.faults.buffer_max);
        set.unwrap_or_else(|| {
            let range = max.saturating_sub(min) as u64 + 1;
            min + self.choices.below(Track::Time, range) as usize
        })
    }

    fn new_conn(&mut self, is_unix: bool, ends: [End; 2], set: Option<usize>) -> Conn {
        let sizes = [self.capacity(set), self.capacity(set)];
        Conn {
            is_unix,
            link: None,
            lane: 0,
            stage: Stage::Done,
            tries: 0,
            server: HostId(0),
            listener: None,
            ends,
            flows: sizes.map(|size| Flow::new(size, is_unix)),
        }
    }

    pub(super) fn socketpair(&mut self, host: HostId) -> Result<(Fd, Fd), Errno> {
        self.fail(Fault::TooManyFiles, None, Errno::MFILE)?;
        let end = || End::new(None, SimAddr::Unix(None));
        let conn = self.new_conn(true, [end(), end()], None);
        let key = self.conns.insert(conn);
        let [first, second] = [0, 1].map(|side| self.attach(host, key, side, false));
        Ok((first, second))
    }

    /// Makes the descriptor of a side.
    fn attach(&mut self, host: HostId, conn: Key, side: u8, reset_on_close: bool) -> Fd {
        let fd = self.open_surely(host, Kind::Conn { conn, side, reset_on_close });
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.ends[usize::from(side)].fd = Some(fd);
        }
        fd
    }

    pub(super) fn bind(&mut self, fd: Fd, addr: &SimAddr) -> Result<(), Errno> {
        let object = self.object(fd)?;
        let (host, is_udp) = (object.host, matches!(object.kind, Kind::Udp(_)));
        let (is_bound, is_unix, reuses) = match &object.kind {
            Kind::Udp(udp) => (udp.local.is_some(), false, false),
            Kind::Socket(socket) => {
                (socket.local.is_some(), socket.kind == SocketKind::Unix, socket.reuse_port)
            }
            Kind::Conn { .. } => return Err(Errno::INVAL),
            _ => return Err(Errno::NOTSOCK),
        };
        if is_bound {
            return Err(Errno::INVAL);
        }
        let (local, port) = match addr {
            SimAddr::Unix(Some(path)) if is_unix => {
                let place = (host, path.clone());
                if self.network.paths.contains_key(&place) {
                    return Err(Errno::ADDRINUSE);
                }
                self.network.paths.insert(place, fd);
                (addr.clone(), 0)
            }
            SimAddr::Inet(inet) if !is_unix => {
                let own = inet.ip().is_unspecified() || inet.ip().is_loopback();
                if !own && self.network.address(host) != inet.ip() {
                    return Err(Errno::ADDRNOTAVAIL);
                }
                let port = match inet.port() {
                    0 => self.network.free_port(host, is_udp).ok_or(Errno::ADDRINUSE)?,
                    port => port,
                };
                let others = self.network.ports.get(&(host, is_udp, port));
                let others = others.cloned().unwrap_or_default();
                let shares = reuses && others.iter().all(|fd| self.reuses(*fd));
                if !others.is_empty() && !shares {
                    return Err(Errno::ADDRINUSE);
                }
                self.network.ports.entry((host, is_udp, port)).or_default().push(fd);
                (SimAddr::from((inet.ip(), port)), port)
            }
            _ => return Err(Errno::INVAL),
        };
        match &mut self.object_mut(fd)?.kind {
            Kind::Udp(udp) => udp.local = Some(local),
            Kind::Socket(socket) => socket.local = Some(local),
            _ => {}
        }
        self.record(What::Bind, Some(fd), i64::from(port));
        Ok(())
    }

    fn reuses(&self, fd: Fd) -> bool {
        let kind = self.object(fd).map(|object| &object.kind);
        matches!(kind, Ok(Kind::Socket(socket)) if socket.reuse_port)
    }

    pub(super) fn listen(&mut self, fd: Fd, backlog: u32) -> Result<(), Errno> {
        let object = self.object_mut(fd)?;
        let host = object.host;
        let Kind::Socket(socket) = &mut object.kind else { return Err(Errno::INVAL) };
        if let Some(present) = &mut socket.backlog {
            present.max = backlog;
            return Ok(());
        }
        match (socket.kind, &socket.local) {
            (SocketKind::Unix, None) => return Err(Errno::INVAL),
            (SocketKind::Tcp, None) => {
                let any = SimAddr::from((self.network.address(host), 0));
                self.bind(fd, &any)?;
            }
            _ => {}
        }
        if let Kind::Socket(socket) = &mut self.object_mut(fd)?.kind {
            socket.backlog = Some(Backlog { max: backlog, waiting: VecDeque::new() });
        }
        self.record(What::Listen, Some(fd), i64::from(backlog));
        Ok(())
    }

    pub(super) fn accept(&mut self, fd: Fd) -> Result<(Fd, SimAddr), Errno> {
        let result = self.try_accept(fd);
        let value = match &result {
            Ok((accepted, _)) => i64::from(accepted.slot()),
            Err(error) => -i64::from(error.raw_os_error()),
        };
        self.record(What::Accept, Some(fd), value);
        result
    }

    fn try_accept(&mut self, fd: Fd) -> Result<(Fd, SimAddr), Errno> {
        let object = self.objects.get(fd.as_raw()).ok_or(Errno::BADF)?;
        let host = object.host;
        let (is_empty, reset_on_close) = match &object.kind {
            Kind::Socket(socket) => match &socket.backlog {
                Some(backlog) => (backlog.waiting.is_empty(), socket.reset_on_close),
                None => return Err(Errno::INVAL),
            },
            Kind::Conn { .. } => return Err(Errno::INVAL),
            Kind::Udp(_) => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::NOTSOCK),
        };
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        // accept4(2) takes the number of a descriptor before it looks for a connection.
        self.fail(Fault::TooManyFiles, Some(fd), Errno::MFILE)?;
        if is_empty {
            return Err(Errno::AGAIN);
        }
        let aborts = self.fault(Fault::AbortedAccept, Some(fd));
        let object = self.objects.get_mut(fd.as_raw()).ok_or(Errno::BADF)?;
        let Kind::Socket(socket) = &mut object.kind else { return Err(Errno::INVAL) };
        let waiting = socket.backlog.as_mut().and_then(|backlog| backlog.waiting.pop_front());
        let key = waiting.ok_or(Errno::AGAIN)?;
        if aborts {
            self.abandon(key);
            return Err(Errno::CONNABORTED);
        }
        let accepted = self.attach(host, key, 1, reset_on_close);
        let peer = self.conns.get(key).map(|conn| conn.ends[0].addr.clone());
        Ok((accepted, peer.unwrap_or(SimAddr::Unix(None))))
    }

    pub(super) fn connect(&mut self, fd: Fd, addr: &SimAddr) -> Result<(), Errno> {
        let result = self.try_connect(fd, addr);
        let value = result.err().map_or(0, |error| -i64::from(error.raw_os_error()));
        self.record(What::Connect, Some(fd), value);
        result
    }

    fn try_connect(&mut self, fd: Fd, addr: &SimAddr) -> Result<(), Errno> {
        let object = self.object_mut(fd)?;
        let kind = match &mut object.kind {
            Kind::Socket(socket) if socket.backlog.is_some() => return Err(Errno::ISCONN),
            Kind::Socket(socket) => socket.kind,
            Kind::Udp(udp) => {
                udp.peer = Some(addr.clone());
                return Ok(());
            }
            Kind::Conn { conn, side, .. } => {
                let (key, side) = (*conn, usize::from(*side));
                return self.connect_again(fd, key, side);
            }
            _ => return Err(Errno::NOTSOCK),
        };
        match (kind, addr) {
            (SocketKind::Unix, SimAddr::Unix(Some(path))) => self.connect_unix(fd, path),
            (SocketKind::Tcp, SimAddr::Inet(_)) => self.connect_tcp(fd, addr),
            _ => Err(Errno::AFNOSUPPORT),
        }
    }

    /// The first call after an attempt returns its outcome. After a failure the socket is as new.
    fn connect_again(&mut self, fd: Fd, key: Key, side: usize) -> Result<(), Errno> {
        let conn = self.conns.get_mut(key).ok_or(Errno::ISCONN)?;
        let is_over = conn.is_over(side);
        if conn.is_connecting(side) && !is_over {
            return Err(Errno::ALREADY);
        }
        if side == 1 || conn.is_unix || std::mem::replace(&mut conn.ends[0].is_reported, true) {
            return Err(Errno::ISCONN);
        }
        if !is_over {
            return Ok(());
        }
        let error = conn.ends[0].error.take();
        self.disconnect(fd, key)?;
        Err(error.unwrap_or(Errno::CONNABORTED))
    }

    /// tcp_disconnect(): side 0 becomes a socket that is not connected. It keeps its address.
    fn disconnect(&mut self, fd: Fd, key: Key) -> Result<(), Errno> {
        let conn = self.conns.get_mut(key).ok_or(Errno::NOTCONN)?;
        (conn.ends[0].is_gone, conn.ends[0].fd) = (true, None);
        let (local, buffers) = (Some(conn.ends[0].addr.clone()), Some(conn.flows[0].capacity()));
        self.forget_conn(key);
        let kind = &mut self.object_mut(fd)?.kind;
        let Kind::Conn { reset_on_close, .. } = *kind else { return Err(Errno::NOTCONN) };
        let new = Socket::new(SocketKind::Tcp);
        *kind = Kind::Socket(Box::new(Socket { local, buffers, reset_on_close, ..new }));
        Ok(())
    }

    fn connect_unix(&mut self, fd: Fd, path: &str) -> Result<(), Errno> {
        let host = self.object(fd)?.host;
        let listener = self.network.paths.get(&(host, path.into())).copied();
        let listener = listener.ok_or(Errno::NOENT)?;
        let Kind::Socket(socket) = &self.object(listener)?.kind else {
            return Err(Errno::CONNREFUSED);
        };
        match &socket.backlog {
            None => return Err(Errno::CONNREFUSED),
            Some(backlog) if backlog.is_full() => return Err(Errno::AGAIN),
            Some(_) => {}
        }
        let ends = [End::new(Some(fd), SimAddr::Unix(None)), End::new(None, SimAddr::unix(path))];
        let key = self.turn_into_conn(fd, true, ends)?;
        self.push_waiting(listener, key);
        Ok(())
    }

    /// A socket becomes side 0 of a new connection.
    fn turn_into_conn(&mut self, fd: Fd, is_unix: bool, ends: [End; 2]) -> Result<Key, Errno> {
        let Kind::Socket(socket) = &self.object(fd)?.kind else { return Err(Errno::INVAL) };
        let (reset_on_close, buffers) = (socket.reset_on_close, socket.buffers);
        let conn = self.new_conn(is_unix, ends, buffers);
        let conn = self.conns.insert(conn);
        self.object_mut(fd)?.kind = Kind::Conn { conn, side: 0, reset_on_close };
        Ok(conn)
    }

    fn connect_tcp(&mut self, fd: Fd, addr: &SimAddr) -> Result<(), Errno> {
        let host = self.object(fd)?.host;
        let target = addr.inet().ok_or(Errno::AFNOSUPPORT)?;
        let server = self.network.find(host, target.ip()).ok_or(Errno::HOSTUNREACH)?;
        let Kind::Socket(socket) = &self.object(fd)?.kind else { return Err(Errno::INVAL) };
        if socket.local.is_none() {
            let own =
                if target.ip().is_loopback() { target.ip() } else { self.network.address(host) };
            self.bind(fd, &SimAddr::from((own, 0))).map_err(|_| Errno::ADDRNOTAVAIL)?;
        }
        let Kind::Socket(socket) = &self.object(fd)?.kind else { return Err(Errno::INVAL) };
        let local = socket.local.clone().ok_or(Errno::ADDRNOTAVAIL)?;
        let ends = [End::new(Some(fd), local), End::new(None, addr.clone())];
        let key = self.turn_into_conn(fd, false, ends)?;
        let way = self.network.way(host, server);
        if let Some(conn) = self.conns.get_mut(key) {
            conn.server = server;
            conn.stage = Stage::Syn;
            if let Some((link, lane)) = way {
                (conn.link, conn.lane) = (Some(link), lane);
            }
        }
        self.send_handshake(key, 0);
        // connect(2): an interrupted attempt goes on.
        self.fail(Fault::Interrupted, Some(fd), Errno::INTR)?;
        Err(Errno::INPROGRESS)
    }

    pub(super) fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), Errno> {
        let (read, write) = match how {
            Shutdown::Read => (true, false),
            Shutdown::Write => (false, true),
            Shutdown::Both => (true, true),
        };
        if let Kind::Socket(socket) = &mut self.object_mut(fd)?.kind {
            if let (SocketKind::Tcp, Some(_)) = (socket.kind, &socket.backlog) {
                // inet_shutdown(): a listener stops if it no longer receives.
                let stopped = if read { socket.backlog.take() } else { None };
                stopped.into_iter().flat_map(|it| it.waiting).for_each(|key| self.abandon(key));
                self.wake(Some(fd), 0);
                return Ok(());
            }
        }
        let (key, side) = self.conn_of(fd)?;
        self.record(What::Shutdown, Some(fd), i64::from(write) + i64::from(read && write));
        let Some(conn) = self.conns.get_mut(key) else { return Err(Errno::NOTCONN) };
        if conn.is_over(side) || (conn.is_connecting(side) && !conn.is_unix) {
            return Err(Errno::NOTCONN);
        }
        conn.ends[side].is_reported = true;
        let sends_fin = write && !conn.ends[side].send_shut;
        conn.ends[side].recv_shut |= read;
        conn.ends[side].send_shut |= write;
        let (peer, is_unix) = (conn.ends[1 - side].fd, conn.is_unix);
        if is_unix && read {
            conn.ends[1 - side].send_shut = true;
        }
        self.wake(Some(fd), 0);
        if sends_fin {
            self.transmit(key, side, Segment::Fin);
        }
        // unix_shutdown() tells the peer each time, and once. A FIN tells it too.
        if is_unix && !sends_fin {
            self.wake(peer, 0);
        }
        Ok(())
    }

    /// The descriptor is closed, and leaves all sets. Its object ends when no request of a ring
    /// holds it.
    pub(super) fn close(&mut self, fd: Fd) -> Result<(), Errno> {
        let object = self.object_mut(fd)?;
        object.is_closed = true;
        let is_held = object.holds > 0;
        let is_entry = |watch: &Watch| matches!(watch, Watch::Entry { .. });
        let (entries, requests): (Vec<Watch>, _) =
            mem::take(&mut object.watches).into_iter().partition(is_entry);
        object.watches = requests;
        self.record(What::Close, Some(fd), 0);
        for watch in entries {
            if let Watch::Entry { set, entry } = watch {
                if let Some(set) = self.sets.get_mut(set) {
                    set.remove(entry);
                }
            }
        }
        if !is_held {
            self.release(fd);
        }
        Ok(())
    }

    /// The object of a closed descriptor ends.
    pub(super) fn release(&mut self, fd: Fd) {
        let Some(object) = self.objects.remove(fd.as_raw()) else { return };
        match object.kind {
            Kind::Socket(socket) => {
                self.unbind(fd, object.host, socket.local.as_ref(), false);
                for key in socket.backlog.into_iter().flat_map(|backlog| backlog.waiting) {
                    self.abandon(key);
                }
            }
            Kind::Conn { conn, side, reset_on_close } => {
                let local =
                    self.conns.get(conn).map(|conn| conn.ends[usize::from(side)].addr.clone());
                if side == 0 {
                    self.unbind(fd, object.host, local.as_ref(), false);
                }
                self.close_end(conn, usize::from(side), reset_on_close);
            }
            Kind::Udp(udp) => self.unbind(fd, object.host, udp.local.as_ref(), true),
            Kind::PipeReader(pipe) | Kind::PipeWriter(pipe) => self.close_pipe(fd, pipe),
            Kind::Signals(_) => self.network.remove_signals(object.host, fd),
            Kind::EventCount(_) | Kind::Timer(_) => {}
        }
    }

    fn unbind(&mut self, fd: Fd, host: HostId, local: Option<&SimAddr>, is_udp: bool) {
        match local {
            Some(SimAddr::Inet(address)) => {
                let place = (host, is_udp, address.port());
                if let Some(fds) = self.network.ports.get_mut(&place) {
                    fds.retain(|other| *other != fd);
                    if fds.is_empty() {
                        self.network.ports.remove(&place);
                    }
                }
            }
            Some(SimAddr::Unix(Some(path))) => {
                // The path stays until it is unlinked on Linux; here it goes with its socket.
                let place = (host, path.clone());
                if self.network.paths.get(&place) == Some(&fd) {
                    self.network.paths.remove(&place);
                }
            }
            _ => {}
        }
    }

    /// A side of a connection is closed: by a reset if input is lost, else by a FIN after the
    /// output.
    fn close_end(&mut self, key: Key, side: usize, reset_on_close: bool) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let peer = 1 - side;
        let has_unread = conn.flows[side].arrived() > 0;
        let was_shut = conn.ends[side].send_shut;
        let both_finish = was_shut && conn.flows[side].fin_arrived();
        conn.ends[side].is_gone = true;
        conn.ends[side].fd = None;
        conn.flows[side].discard();
        if conn.is_unix {
            if !conn.ends[peer].is_gone {
                conn.flows[peer].arrive_fin();
                conn.ends[peer].send_shut = true;
                if has_unread {
                    conn.ends[peer].error = Some(Errno::CONNRESET);
                }
                let fd = conn.ends[peer].fd;
                self.wake(fd, 0);
            }
        } else if conn.is_connecting(side) || conn.is_over(side) {
            // `handshake` removes it, and an end that is over says nothing.
        } else if has_unread || reset_on_close {
            self.send_reset(key, side, both_finish);
        } else if !was_shut {
            self.transmit(key, side, Segment::Fin);
        }
        self.forget_conn(key);
    }
}

impl State {
    pub(super) fn local_addr(&self, fd: Fd) -> Result<SimAddr, Errno> {
        let any = |kind| match kind {
            SocketKind::Unix => SimAddr::Unix(None),
            SocketKind::Tcp | SocketKind::Udp => SimAddr::from((ANY, 0)),
        };
        match &self.object(fd)?.kind {
            Kind::Socket(socket) => Ok(socket.local.clone().unwrap_or_else(|| any(socket.kind))),
            Kind::Udp(udp) => Ok(udp.local.clone().unwrap_or_else(|| any(SocketKind::Udp))),
            Kind::Conn { conn, side, .. } => self.end_addr(*conn, usize::from(*side)),
            _ => Err(Errno::NOTSOCK),
        }
    }

    pub(super) fn peer_addr(&self, fd: Fd) -> Result<SimAddr, Errno> {
        match &self.object(fd)?.kind {
            Kind::Udp(udp) => udp.peer.clone().ok_or(Errno::NOTCONN),
            Kind::Conn { conn, side, .. } => {
                let side = usize::from(*side);
                let conn_state = self.conns.get(*conn).ok_or(Errno::NOTCONN)?;
                if conn_state.is_connecting(side) || conn_state.is_over(side) {
                    return Err(Errno::NOTCONN);
                }
                self.end_addr(*conn, 1 - side)
            }
            Kind::Socket(_) => Err(Errno::NOTCONN),
            _ => Err(Errno::NOTSOCK),
        }
    }

    fn end_addr(&self, conn: Key, side: usize) -> Result<SimAddr, Errno> {
        let conn = self.conns.get(conn).ok_or(Errno::NOTCONN)?;
        Ok(conn.ends[side].addr.clone())
    }
}
