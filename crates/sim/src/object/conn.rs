//! A connection of two ends, and its readiness as tcp_poll() and unix_poll() compute it.

use rustix::io::Errno;

use crate::ids::{Fd, HostId, SimAddr, mask};
use crate::object::flow::Flow;

/// The steps of a TCP handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The SYN is under way.
    Syn,
    /// The answer is under way.
    SynAck,
    /// The peer has refused.
    Refused,
    /// The client is connected, and the last ACK is under way.
    Ack,
    /// Both ends are connected.
    Done,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    /// Its descriptor: none before accept(2) and after close(2).
    pub(crate) fd: Option<Fd>,
    pub(crate) addr: SimAddr,
    /// Closed for good.
    pub(crate) is_gone: bool,
    /// Reset or failed: nothing more goes in or out.
    pub(crate) is_dead: bool,
    pub(crate) recv_shut: bool,
    pub(crate) send_shut: bool,
    /// connect(2) has reported that it is connected.
    pub(crate) is_reported: bool,
    /// The error that the next call or SO_ERROR reports.
    pub(crate) error: Option<Errno>,
    /// A writer has found no room, so it is told of some.
    pub(crate) wants_room: bool,
    /// A fault holds the writer up.
    pub(crate) is_blocked: bool,
}

impl End {
    pub(crate) fn new(fd: Option<Fd>, addr: SimAddr) -> Self {
        Self {
            fd,
            addr,
            is_gone: false,
            is_dead: false,
            recv_shut: false,
            send_shut: false,
            is_reported: false,
            error: None,
            wants_room: false,
            is_blocked: false,
        }
    }
}

/// A connection. Side 0 has connected, side 1 has accepted.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) is_unix: bool,
    /// The link between the hosts; none inside a host.
    pub(crate) link: Option<u32>,
    /// Which direction of the link side 0 sends on.
    pub(crate) lane: usize,
    pub(crate) stage: Stage,
    /// How often the step of the handshake was sent in vain.
    pub(crate) tries: u32,
    /// The host of side 1.
    pub(crate) server: HostId,
    /// Where the connection waits to be accepted.
    pub(crate) listener: Option<Fd>,
    pub(crate) ends: [End; 2],
    /// `flows[side]` leads to that side.
    pub(crate) flows: [Flow; 2],
}

impl Conn {
    /// Whether the end has sent its connection request and waits.
    pub(crate) fn is_connecting(&self, side: usize) -> bool {
        side == 0 && matches!(self.stage, Stage::Syn | Stage::SynAck | Stage::Refused)
    }

    /// Whether both ends of TCP have closed in order. The socket is in the state TCP_CLOSE then,
    /// and hears no reset. The last acknowledgement is taken to come at once.
    pub(crate) fn is_finished(&self, side: usize) -> bool {
        !self.is_unix && !self.ends[1 - side].is_dead && self.flows.iter().all(Flow::fin_arrived)
    }

    /// Whether the end is no longer connected: finished, reset or failed.
    pub(crate) fn is_over(&self, side: usize) -> bool {
        self.ends[side].is_dead || self.is_finished(side)
    }

    /// Whether the end answers bytes by a reset, though it is open: it takes none, and has sent its
    /// FIN. Before the FIN it takes them all the same (tcp_rcv_state_process(), RFC 1122 4.2.2.13).
    pub(crate) fn rejects(&self, side: usize) -> bool {
        let end = &self.ends[side];
        !self.is_unix && end.recv_shut && end.send_shut && !end.is_dead
    }

    /// Whether a write of the end would take something.
    pub(crate) fn is_writable(&self, side: usize) -> bool {
        !self.ends[side].is_blocked && self.flows[1 - side].is_writable()
    }

    /// The readiness of an end, in bits of epoll(7).
    pub(crate) fn mask(&self, side: usize) -> u32 {
        let (end, input) = (&self.ends[side], &self.flows[side]);
        let mut bits = 0;
        if end.error.is_some() {
            bits |= mask::ERR;
        }
        if self.is_connecting(side) && !end.is_dead {
            return bits;
        }
        let recv_shut = end.recv_shut || end.is_dead || input.fin_arrived();
        let send_shut = end.send_shut || end.is_dead;
        if recv_shut && send_shut {
            bits |= mask::HUP;
        }
        if recv_shut {
            bits |= mask::IN | mask::RDHUP;
        }
        if input.arrived() > 0 {
            bits |= mask::IN;
        }
        // tcp_poll() reports room for an end that cannot write, so that it tries and fails.
        if self.is_writable(side) || (!self.is_unix && send_shut) {
            bits |= mask::OUT;
        }
        bits
    }

    /// The result of a read if nothing can be read: the end of the stream, or an error.
    pub(crate) fn read_nothing(&mut self, side: usize) -> Result<usize, Errno> {
        let (is_connecting, is_unix) = (self.is_connecting(side), self.is_unix);
        let (end, input) = (&mut self.ends[side], &self.flows[side]);
        // A Unix stream reports its error before its end, TCP after a FIN not at all.
        if !is_unix && input.fin_arrived() {
            return Ok(0);
        }
        if let Some(error) = end.error.take() {
            return Err(error);
        }
        if end.is_dead || end.recv_shut || input.fin_arrived() {
            return Ok(0);
        }
        debug_assert!(!is_connecting || input.arrived() == 0, "nothing comes before a handshake");
        Err(Errno::AGAIN)
    }

    /// Whether a write fails, and how. A pending error is taken.
    pub(crate) fn check_write(&mut self, side: usize) -> Result<(), Errno> {
        let (is_unix, is_connecting) = (self.is_unix, self.is_connecting(side));
        let peer = &self.ends[1 - side];
        let peer_is_deaf = is_unix && (peer.is_gone || peer.recv_shut);
        let end = &mut self.ends[side];
        if is_unix && (end.send_shut || end.is_dead || peer_is_deaf) {
            return Err(Errno::PIPE);
        }
        if end.error.is_some() || end.send_shut || end.is_dead {
            return Err(end.error.take().unwrap_or(Errno::PIPE));
        }
        if is_connecting { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// The network or the peer has reset an end.
    pub(crate) fn kill(&mut self, side: usize, error: Errno) {
        if self.is_finished(side) {
            return;
        }
        let end = &mut self.ends[side];
        if !end.is_dead {
            end.is_dead = true;
            // tcp_reset(): in CLOSE_WAIT, so after the peer's FIN and before its own, it is EPIPE.
            let waits = self.flows[side].fin_arrived() && !end.send_shut;
            let is_broken = waits && error == Errno::CONNRESET;
            end.error = Some(if is_broken { Errno::PIPE } else { error });
        }
        self.flows[side].purge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(is_unix: bool) -> Conn {
        let end = || End::new(Some(Fd::from_raw(1)), SimAddr::Unix(None));
        Conn {
            is_unix,
            link: None,
            lane: 0,
            stage: Stage::Done,
            tries: 0,
            server: HostId(0),
            listener: None,
            ends: [end(), end()],
            flows: [Flow::new(100, is_unix), Flow::new(100, is_unix)],
        }
    }

    #[test]
    fn an_idle_end_can_be_written_to() {
        assert_eq!(conn(false).mask(0), mask::OUT);
        let mut connecting = conn(false);
        connecting.stage = Stage::Syn;
        assert_eq!((connecting.mask(0), connecting.mask(1)), (0, mask::OUT));
        assert_eq!(connecting.check_write(0), Err(Errno::AGAIN));
    }

    #[test]
    fn a_fin_is_input_and_both_ends_of_it_a_hang_up() {
        let mut conn = conn(false);
        conn.flows[0].arrive_fin();
        assert_eq!(conn.mask(0), mask::IN | mask::RDHUP | mask::OUT);
        assert_eq!(conn.read_nothing(0), Ok(0));
        conn.ends[0].send_shut = true;
        assert_eq!(conn.mask(0), mask::IN | mask::RDHUP | mask::OUT | mask::HUP);
        assert_eq!(conn.check_write(0), Err(Errno::PIPE));
    }

    #[test]
    fn a_reset_is_reported_once_and_then_the_end() {
        let mut conn = conn(false);
        conn.kill(1, Errno::CONNRESET);
        assert_ne!(conn.mask(1) & (mask::ERR | mask::HUP), 0);
        assert_eq!(conn.read_nothing(1), Err(Errno::CONNRESET));
        assert_eq!(conn.read_nothing(1), Ok(0));
        assert_eq!(conn.check_write(1), Err(Errno::PIPE));
    }

    #[test]
    fn a_reset_after_the_fin_is_a_broken_pipe() {
        let mut conn = conn(false);
        conn.flows[0].arrive_fin();
        conn.kill(0, Errno::CONNRESET);
        assert_eq!(conn.check_write(0), Err(Errno::PIPE));
        assert_eq!(conn.read_nothing(0), Ok(0));
    }

    #[test]
    fn a_reset_in_last_ack_is_an_error_of_its_own() {
        let mut conn = conn(false);
        conn.flows[0].arrive_fin();
        conn.ends[0].send_shut = true;
        conn.kill(0, Errno::CONNRESET);
        assert_eq!(conn.ends[0].error, Some(Errno::CONNRESET));
        assert_eq!(conn.read_nothing(0), Ok(0));
    }

    #[test]
    fn an_end_whose_two_fins_have_arrived_hears_no_reset() {
        let mut conn = conn(false);
        for side in [0, 1] {
            conn.ends[side].send_shut = true;
            conn.flows[side].arrive_fin();
        }
        conn.kill(0, Errno::CONNRESET);
        assert!(conn.is_finished(0) && conn.is_over(0));
        assert_eq!((conn.ends[0].error, conn.ends[0].is_dead), (None, false));
        // A peer that was reset before has not acknowledged the FIN.
        conn.ends[1].is_dead = true;
        conn.kill(0, Errno::CONNRESET);
        assert_eq!(conn.ends[0].error, Some(Errno::CONNRESET));
    }

    #[test]
    fn a_unix_peer_that_is_gone_breaks_the_pipe_before_its_error() {
        let mut conn = conn(true);
        conn.ends[1].is_gone = true;
        conn.ends[0].error = Some(Errno::CONNRESET);
        assert_eq!(conn.check_write(0), Err(Errno::PIPE));
        assert_eq!(conn.read_nothing(0), Err(Errno::CONNRESET));
    }
}
