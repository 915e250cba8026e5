//! Hooks: closures that run before every wait or after every turn.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{HookError, NotFound, Reactor, Turn};

/// The most hooks that a reactor accepts, of both kinds together.
pub const HOOKS_MAX: usize = 64;

/// The key of a hook. Pass it to [`Reactor::remove_hook`].
///
/// ```
/// use std::time::Duration;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let hook = reactor.before_wait(|_| println!("the loop is about to wait"))?;
/// reactor.run_once(Duration::ZERO)?;
/// reactor.remove_hook(hook)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HookKey(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeWait,
    AfterTurn,
}

pub(crate) type HookCall = Box<dyn FnMut(Turn<'_, Reactor>)>;

struct Hook {
    key: HookKey,
    moment: Moment,
    call: HookCall,
}

/// A reactor's hooks, in the order in which they were added.
pub(crate) struct Hooks {
    list: Vec<Hook>,
}

impl Hooks {
    pub(crate) const fn new() -> Self {
        Self { list: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn add(&mut self, moment: Moment, call: HookCall) -> Result<HookKey, HookError> {
        if self.list.len() >= HOOKS_MAX {
            return Err(HookError);
        }
        // One 64-bit counter for the process, so a key of one reactor names nothing in another.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = HookKey(NEXT.fetch_add(1, Ordering::Relaxed));
        self.list.push(Hook { key, moment, call });
        Ok(key)
    }

    pub(crate) fn remove(&mut self, key: HookKey) -> Result<HookCall, NotFound> {
        let place = self.list.iter().position(|hook| hook.key == key).ok_or(NotFound)?;
        Ok(self.list.remove(place).call)
    }

    pub(crate) fn pop(&mut self) -> Option<HookCall> {
        self.list.pop().map(|hook| hook.call)
    }
}

impl Reactor {
    /// Runs the hooks of one moment. They are moved out of the reactor meanwhile, which is not
    /// observable because a turn cannot access hooks.
    pub(crate) fn run_hooks(&mut self, moment: Moment) {
        /// Puts the hooks back, even if one panics.
        struct RestoreHooks<'r>(&'r mut Reactor, Vec<Hook>);
        impl Drop for RestoreHooks<'_> {
            fn drop(&mut self) {
                self.0.hooks.list = core::mem::take(&mut self.1);
            }
        }

        if self.hooks.list.is_empty() {
            return;
        }
        let list = core::mem::take(&mut self.hooks.list);
        let mut restore = RestoreHooks(self, list);
        let RestoreHooks(reactor, list) = &mut restore;
        for hook in list.iter_mut().filter(|hook| hook.moment == moment) {
            (hook.call)(Turn::new(reactor));
        }
    }
}
