//! The names of registrations, and what a listing says of each.

use std::os::fd::RawFd;

use crate::{Interest, Key};

/// The most bytes of a name. A longer one is cut there, at the last character that fits whole.
pub const NAME_LEN_MAX: usize = 64;

/// A name as it is kept: cut to [`NAME_LEN_MAX`]. `None` for an empty one.
pub(crate) fn bounded_name(name: &str) -> Option<Box<str>> {
    let mut len = name.len().min(NAME_LEN_MAX);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    (len > 0).then(|| name[..len].into())
}

/// What the key of a [`RegistrationInfo`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationKind {
    /// A descriptor with a handler, signals among them.
    Descriptor,
    /// A listener.
    Listener,
    /// A stream, or an attempt to connect.
    Stream,
    /// A timer.
    Timer,
    /// A group. Its members are listed by themselves.
    Group,
}

/// What a reactor tells of one registration: see
/// [`Reactor::registrations`](crate::Reactor::registrations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationInfo<'r> {
    /// Its key. [`remove`](crate::Reactor::remove) ends it, whatever its kind is.
    pub key: Key,
    /// What the key names.
    pub kind: RegistrationKind,
    /// The descriptor's number when it was registered. `None` for timers and groups.
    pub fd: Option<RawFd>,
    /// The interest that is in force, or will be with the next wait. That of streams and listeners
    /// is the reactor's own. `None` for timers and groups.
    pub interest: Option<Interest>,
    /// Its name, if it has one.
    pub name: Option<&'r str>,
    /// The group that it is a member of.
    pub group: Option<Key>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_between_two_characters() {
        assert_eq!(bounded_name(""), None);
        assert_eq!(bounded_name("net0 tx").as_deref(), Some("net0 tx"));
        let whole = "x".repeat(NAME_LEN_MAX);
        assert_eq!(bounded_name(&whole).as_deref(), Some(&*whole));
        assert_eq!(bounded_name(&format!("{whole}y")).as_deref(), Some(&*whole));
        // Its last character begins at byte 63 and ends at byte 65.
        let cut = "x".repeat(NAME_LEN_MAX - 1);
        assert_eq!(bounded_name(&format!("{cut}é")).as_deref(), Some(&*cut));
    }
}
