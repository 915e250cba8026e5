//! A frame that answers the peer.

/// The answer, as it is written.
#[derive(Debug)]
pub(super) struct Answer {
    is_pong: bool,
    pub(super) frame: Box<[u8]>,
}

/// Replaces the answer, if it is a pong (RFC 6455 section 5.5.3).
#[cold]
pub(super) fn set(answer: &mut Option<Answer>, is_pong: bool, frame: Box<[u8]>) {
    if answer.as_ref().is_none_or(|answer| answer.is_pong) {
        *answer = Some(Answer { is_pong, frame });
    }
}
