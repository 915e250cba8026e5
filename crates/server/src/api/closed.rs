//! How a connection ended.

use core::fmt;
use std::collections::BTreeMap;

use windlass::Errno;
use windlass_ws::{CloseCode, Violation};

use super::id::ConnectionId;

/// Why a connection was closed. The first reason wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a Close frame.
    Peer,
    /// This side closed it, by [`Connection::close`](crate::Connection::close) or another call of
    /// the application.
    Local,
    /// The peer violated the protocol or exceeded a limit, and was sent a Close frame that says so.
    Violation(Violation),
    /// Nothing was received for [`idle_timeout`](crate::Options::idle_timeout).
    Idle,
    /// The connection was open for [`lifetime_max`](crate::Options::lifetime_max).
    Lifetime,
    /// The peer did not read its messages
    /// ([`SlowConsumerPolicy::Evict`](crate::SlowConsumerPolicy::Evict)).
    Evicted,
    /// The peer read none of the output for
    /// [`write_stall_timeout`](crate::Options::write_stall_timeout).
    WriteStall,
    /// The peer ended the connection without a Close frame.
    Lost,
    /// The kernel reported an error, for instance `ECONNRESET`.
    Failed(Errno),
    /// The drain's deadline passed.
    Drained,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("closed by the peer"),
            Self::Local => f.write_str("closed by this side"),
            Self::Violation(violation) => write!(f, "protocol violation: {violation}"),
            Self::Idle => f.write_str("idle timeout: no data received"),
            Self::Lifetime => f.write_str("connection lifetime exceeded"),
            Self::Evicted => f.write_str("evicted: the peer reads too slowly"),
            Self::WriteStall => f.write_str("write timeout: the peer read no output"),
            Self::Lost => f.write_str("closed by the peer without a Close frame"),
            Self::Failed(errno) => write!(f, "failed: {errno}"),
            Self::Drained => f.write_str("still open at the end of the graceful shutdown"),
        }
    }
}

/// How a connection ended: the argument of [`on_close`](crate::Handler::on_close).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Closed<'a> {
    /// The ID of the connection. It refers to no connection any more.
    pub id: ConnectionId,
    /// Why the connection ended.
    pub reason: CloseReason,
    /// The code of the peer's Close frame, if a frame with a code was received.
    pub code: Option<CloseCode>,
    /// The text of the peer's Close frame; empty without one.
    pub text: &'a str,
}

/// Reasons why connections are about to end, by index of the connection.
///
/// The first noted reason is stored apart from the map. Most connections end one after the other,
/// in the turn in which the reason is noted. The map would allocate and free memory for each of
/// them.
#[derive(Debug, Default)]
pub(crate) struct CloseInfos {
    first: Option<(u32, CloseInfo)>,
    others: BTreeMap<u32, CloseInfo>,
}

impl CloseInfos {
    /// Notes a reason, unless one is already noted.
    pub(crate) fn note(&mut self, index: u32, reason: CloseReason) {
        match &self.first {
            Some((first, _)) if *first == index => {}
            None if self.others.is_empty() => self.first = Some((index, CloseInfo::new(reason))),
            _ => {
                self.others.entry(index).or_insert_with(|| CloseInfo::new(reason));
            }
        }
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut CloseInfo> {
        match &mut self.first {
            Some((first, close_info)) if *first == index => Some(close_info),
            _ => self.others.get_mut(&index),
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<CloseInfo> {
        match self.first.take_if(|(first, _)| *first == index) {
            Some((_, close_info)) => Some(close_info),
            None if self.others.is_empty() => None,
            None => self.others.remove(&index),
        }
    }
}

/// Facts about a connection's end that are known before it ends.
#[derive(Debug)]
pub(crate) struct CloseInfo {
    pub(crate) reason: CloseReason,
    pub(crate) code: Option<CloseCode>,
    pub(crate) text: Box<str>,
}

impl CloseInfo {
    pub(crate) fn new(reason: CloseReason) -> Self {
        Self { reason, code: None, text: "".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_first_counts() {
        let mut close_infos = CloseInfos::default();
        for index in [1, 2, 3] {
            close_infos.note(index, CloseReason::Lost);
            close_infos.note(index, CloseReason::Idle);
        }
        close_infos.get_mut(1).unwrap().text = "one".into();
        close_infos.get_mut(3).unwrap().text = "three".into();
        assert_eq!(close_infos.remove(1).map(|close_info| close_info.text), Some("one".into()));
        // Later entries stay where they are.
        close_infos.note(2, CloseReason::Evicted);
        close_infos.note(4, CloseReason::Evicted);
        let reasons: Vec<_> = (1..5)
            .map(|index| close_infos.remove(index).map(|close_info| close_info.reason))
            .collect();
        assert_eq!(
            reasons,
            [None, Some(CloseReason::Lost), Some(CloseReason::Lost), Some(CloseReason::Evicted)]
        );
        assert!((0..5).all(
            |index| close_infos.remove(index).is_none() && close_infos.get_mut(index).is_none()
        ));
    }
}
