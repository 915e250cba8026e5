//! Pausing and resuming groups: their descriptors and timers.

use crate::{Key, NotFound, PauseError, Reactor, api::key::KeyKind};

impl Reactor {
    /// See [`Turn::pause_group`](crate::Turn::pause_group).
    pub(super) fn pause_members(&mut self, group: Key) -> Result<(), PauseError> {
        let members = self.groups.members(group).ok_or(NotFound)?;
        // A stream or listener has no cell that the user's keys name.
        let is_stream =
            |member: &Key| member.kind() != KeyKind::Timer && self.kernel.get(*member).is_none();
        if members.iter().any(is_stream) {
            return Err(PauseError::HasStreams);
        }
        self.groups.set_paused(group, true);
        members.into_iter().for_each(|member| self.pause_member(member));
        self.end_pause();
        Ok(())
    }

    /// Pauses a member of a paused group. The caller calls [`end_pause`](Self::end_pause).
    pub(super) fn pause_member(&mut self, member: Key) {
        if let Some(cell) = self.kernel.get(member) {
            self.kernel.pause(cell);
        } else {
            self.timing.pause(member);
        }
    }

    /// Members have been paused.
    pub(super) fn end_pause(&mut self) {
        self.kernel.keep_synthetic_of_paused();
        if !self.kernel.is_in_turn() {
            self.recompute_pending();
        }
    }

    /// See [`Turn::resume_group`](crate::Turn::resume_group).
    pub(super) fn resume_members(&mut self, group: Key) -> Result<(), NotFound> {
        let members = self.groups.members(group).ok_or(NotFound)?;
        // The clock may be user code, which comes before any state changes (rule 3).
        let has_timers = members.iter().any(|member| member.kind() == KeyKind::Timer);
        let now_ns = if has_timers { self.timing.now_ns(&mut self.kernel) } else { 0 };
        self.groups.set_paused(group, false);
        for member in members {
            if let Some(cell) = self.kernel.get(member) {
                self.kernel.resume(cell);
            } else {
                self.timing.resume(&mut self.kernel, member, now_ns);
            }
        }
        Ok(())
    }
}
