//! What the reactor does with groups: it registers and deletes their members together.

#![allow(
    unsafe_code,
    reason = "the owner borrows the state of a group between turns; the running cell is looked at"
)]

use crate::{
    AddReason, GroupError, GroupReason, Interest, Key, NotFound, Reactor, Subscription, TimerError,
    TimerReason,
    api::{
        group::{Admitted, ErasedGroup, GroupKey, Member, Withdraw},
        key::KeyKind,
        timer::{Schedule, Timer},
    },
    cell::{CellFlags, CellPtr, NO_GROUP},
    kernel::{Kernel, pending_work},
    stream::parts::ReactorParts,
};

/// A registered member, and the data needed to withdraw it if a later one is rejected.
enum JoinedMember {
    Descriptor(Key),
    Timer(Key, Schedule),
    Other(Key, Withdraw<Reactor>),
}

/// Why a member was rejected.
enum MemberReason {
    Descriptor(AddReason),
    Timer(TimerReason),
}

impl MemberReason {
    fn at(self, place: usize) -> GroupReason {
        match self {
            Self::Descriptor(reason) => GroupReason::Descriptor(place, reason),
            Self::Timer(reason) => GroupReason::Timer(place, reason),
        }
    }
}

impl Member<Reactor> {
    /// Makes the calls of user code that registering it takes. Reads a descriptor member's number
    /// and interest.
    fn ask(&mut self, kernel: &Kernel) -> Option<(Result<i32, AddReason>, Interest)> {
        match self {
            Self::Descriptor(subscription) => {
                Some((kernel.number_of(subscription), subscription.interest()))
            }
            Self::Timer(_) => None,
            Self::Other(member) => {
                member.prepare();
                None
            }
        }
    }
}

impl JoinedMember {
    fn key(&self) -> Key {
        match self {
            Self::Descriptor(key) | Self::Timer(key, _) | Self::Other(key, _) => *key,
        }
    }
}

impl Reactor {
    /// Borrows the state of a group for the lifetime of the reactor's borrow.
    pub(crate) fn borrow_state<S: 'static>(&mut self, group: GroupKey<S>) -> Option<&mut S> {
        let state = self.groups.state(group.key())?;
        // SAFETY: the group belongs to this reactor, and the reactor is mutably borrowed as long as
        // the result lives. During that time no handler runs (protocol 2 of
        // `api/group/state.rs`) and no member is deleted. Therefore the state is alive and not
        // borrowed elsewhere.
        unsafe { state.borrow() }
    }

    /// Registers all members of a group, or none of them.
    pub(crate) fn admit_group(
        &mut self,
        mut group: ErasedGroup<Self>,
    ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>> {
        let slot = match self.groups.slot_for(&group, self.limits.subscribers_max) {
            Ok(slot) => slot,
            Err(reason) => return Err(GroupError { reason, group }),
        };
        // All calls of user code, which may panic, come before any state changes (rule 3).
        let now = self.timing.now_ns(&mut self.kernel);
        let kernel = &self.kernel;
        let asked: Vec<_> = group.members.iter_mut().map(|member| member.ask(kernel)).collect();
        let ErasedGroup { state, members, joins } = group;
        let mut joined = Vec::with_capacity(members.len());
        let mut waiting = members.into_iter().zip(asked);
        while let Some((member, asked)) = waiting.next() {
            match self.admit_member(member, asked, now, slot.index) {
                Ok(member) => joined.push(member),
                Err((reason, member)) => {
                    let reason = reason.at(joined.len());
                    let back = joined.into_iter().map(|joined| self.withdraw(joined));
                    let members =
                        back.chain([member]).chain(waiting.map(|(member, _)| member)).collect();
                    return Err(GroupError {
                        reason,
                        group: ErasedGroup { state, members, joins },
                    });
                }
            }
        }
        let keys: Vec<Key> = joined.iter().map(JoinedMember::key).collect();
        let key = self.groups.add(slot, state, joins.is_none(), &keys);
        if self.groups.is_paused(slot.index) {
            self.pause_each(&keys);
        }
        Ok((key, keys))
    }

    fn admit_member(
        &mut self,
        member: Member<Self>,
        asked: Option<(Result<i32, AddReason>, Interest)>,
        now: u64,
        group: u32,
    ) -> Result<JoinedMember, (MemberReason, Member<Self>)> {
        match member {
            Member::Descriptor(subscription) => {
                let (fd, interest) = asked.expect("a descriptor was asked");
                match fd.and_then(|fd| self.kernel.admit(subscription.cell(), fd, interest)) {
                    Ok(key) => {
                        subscription.into_cell().set_group(group);
                        Ok(JoinedMember::Descriptor(key))
                    }
                    Err(reason) => {
                        Err((MemberReason::Descriptor(reason), Member::Descriptor(subscription)))
                    }
                }
            }
            Member::Timer(timer) => {
                let schedule = timer.schedule;
                match self.place_timer(self.timing.deadline(&self.kernel, now, schedule), timer) {
                    Ok(key) => {
                        self.timing.set_group(key, group);
                        Ok(JoinedMember::Timer(key, schedule))
                    }
                    Err(TimerError { reason, handler }) => {
                        Err((MemberReason::Timer(reason), Member::Timer(handler)))
                    }
                }
            }
            Member::Other(member) => match member.admit(self) {
                Ok(Admitted { key, withdraw }) => {
                    if let Some(cell) = self.streams.member_cell(&self.kernel, key) {
                        cell.set_group(group);
                    }
                    Ok(JoinedMember::Other(key, withdraw))
                }
                Err((reason, member)) => {
                    Err((MemberReason::Descriptor(reason), Member::Other(member)))
                }
            },
        }
    }

    /// Withdraws a member that was registered earlier in the same call.
    fn withdraw(&mut self, joined: JoinedMember) -> Member<Self> {
        match joined {
            JoinedMember::Descriptor(key) => {
                let cell = self.kernel.get(key).expect("registered in this call");
                // In a new block, because the old one may be quarantined.
                let value = self.kernel.take_boxed(cell);
                Member::Descriptor(Subscription::from_boxed(value))
            }
            JoinedMember::Timer(key, schedule) => {
                let ended =
                    self.timing.remove(&mut self.kernel, key).expect("started in this call");
                let call = ended.call.expect("a timer started in this call does not run");
                Member::Timer(Timer { schedule, call })
            }
            JoinedMember::Other(_, withdraw) => Member::Other(withdraw(self)),
        }
    }

    pub(crate) fn deregister_group(&mut self, group: Key) -> Result<(), NotFound> {
        let (state, members) = self.groups.remove(group).ok_or(NotFound)?;
        let mark = self.kernel.waiting();
        // The last member is retired first, because the queue drops the most recent first.
        for key in members.into_iter().rev() {
            if let Some(ended) = self.timing.remove(&mut self.kernel, key) {
                if let Some(call) = ended.call {
                    self.kernel.retire_timer(call);
                }
                continue;
            }
            let Some(cell) = self.streams.member_cell(&self.kernel, key) else { continue };
            if cell.is_paused() && cell.has_flag(CellFlags::HIDDEN) {
                // It ends by its driver.
                self.streams.resume_member(&mut self.kernel, key);
            }
            cell.set_group(NO_GROUP);
            if cell.has_flag(CellFlags::HIDDEN) {
                let ReactorParts { streams, kernel, timing, groups } = self.parts();
                streams.end_member(kernel, timing, groups, key);
            } else {
                self.kernel.deregister(cell);
            }
        }
        // This is not the last reference: members in the reclaim queue, streams that close, or a
        // running member have others.
        drop(state);
        self.kernel.note(pending_work::RECLAIM);
        self.kernel.drop_waiting_down_to(mark);
        Ok(())
    }
    /// Whether the handler of a descriptor member of the group runs. Handlers of other members mark
    /// the state while they borrow it.
    pub(super) fn runs_descriptor_of(&self, group: Key) -> bool {
        let running = self.kernel.running().zip(group.parts(KeyKind::Group));
        let Some((address, (index, _))) = running else {
            return false;
        };
        // SAFETY: a turn asks this, so user code runs, and in an open batch that is the handler of
        // the running event. Its cell is registered, or it has deleted itself and is kept until the
        // handler has returned (rule 1). So its header is allocated.
        let cell = unsafe { CellPtr::<Reactor>::from_exposed(address) };
        cell.group() == index && !cell.has_flag(CellFlags::HIDDEN)
    }
}
