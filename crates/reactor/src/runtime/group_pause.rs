//! Pausing and resuming groups: their descriptors, timers and streams.

use crate::{Key, NotFound, Reactor, api::key::KeyKind};

impl Reactor {
    /// See [`Turn::pause_group`](crate::Turn::pause_group).
    pub(super) fn pause_members(&mut self, group: Key) -> Result<(), NotFound> {
        let members = self.groups.members(group).ok_or(NotFound)?;
        self.kernel.note_progress();
        self.groups.set_paused(group, true);
        self.pause_each(&members);
        Ok(())
    }

    /// Pauses members of a paused group.
    pub(super) fn pause_each(&mut self, members: &[Key]) {
        for &member in members {
            match (self.kernel.get(member), member.kind()) {
                (Some(cell), _) => self.kernel.pause(cell),
                (None, KeyKind::Timer) => self.timing.pause(&mut self.kernel, member),
                // A stream or listener has no cell that the user's keys name.
                (None, _) => self.streams.pause_member(&mut self.kernel, member),
            }
        }
        self.kernel.keep_synthetic_of_paused();
    }

    /// See [`Turn::resume_group`](crate::Turn::resume_group).
    pub(super) fn resume_members(&mut self, group: Key) -> Result<(), NotFound> {
        let members = self.groups.members(group).ok_or(NotFound)?;
        // The clock may be user code, which comes before any state changes (rule 3).
        let has_timers = members.iter().any(|member| member.kind() == KeyKind::Timer);
        let now_ns = if has_timers { self.timing.now_ns(&mut self.kernel) } else { 0 };
        self.kernel.note_progress();
        self.groups.set_paused(group, false);
        for member in members {
            match (self.kernel.get(member), member.kind()) {
                (Some(cell), _) => self.kernel.resume(cell),
                (None, KeyKind::Timer) => self.timing.resume(&mut self.kernel, member, now_ns),
                (None, _) => self.streams.resume_member(&mut self.kernel, member),
            }
        }
        Ok(())
    }
}
