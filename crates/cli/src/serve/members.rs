//! The members of the rooms, over all workers, and the notices about them.
//!
//! 1. Workers change the counts when a connection opens or ends, and at no other time.
//! 2. The main thread publishes the notices twice a second, so a crowd at the door costs a room two
//!    messages a second. A notice is a message on the connections of pages at `/live/NAME`. Members
//!    that are no pages get none.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::json;
use windlass_server::Sender;

use super::rooms::notice_topic;

/// Number of names of each kind in a notice. The others are only counted.
const NAMES_MAX: usize = 8;

/// Number of rooms with notices at a time. The others have theirs half a second later.
const NOTICES_MAX: usize = 256;

/// The members of all rooms.
#[derive(Debug, Default)]
pub(crate) struct Members(Mutex<Rooms>);

#[derive(Debug, Default)]
struct Rooms {
    /// The number of members by the path of the room.
    counts: HashMap<Box<str>, u64>,
    /// What was not announced yet.
    changed: BTreeMap<Box<str>, Changes>,
}

/// What has happened in a room since its last notice.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    joined: Vec<Box<str>>,
    left: Vec<Box<str>>,
}

impl Changes {
    /// Adds a name, unless the same one has just come or gone: a page that connects again is no
    /// news.
    fn note(here: &mut Vec<Box<str>>, there: &mut Vec<Box<str>>, name: &str) {
        if let Some(at) = there.iter().position(|other| **other == *name) {
            there.remove(at);
        } else if here.len() < NAMES_MAX {
            here.push(name.into());
        }
    }
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, Rooms> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to a room is open.
    pub(crate) fn enter(&self, room: &str) {
        let mut rooms = self.lock();
        *rooms.counts.entry(room.into()).or_default() += 1;
        rooms.changed.entry(room.into()).or_default();
    }

    /// A connection to a room has ended.
    pub(crate) fn leave(&self, room: &str) {
        let mut rooms = self.lock();
        let Some(count) = rooms.counts.get_mut(room) else { return };
        *count -= 1;
        if *count == 0 {
            rooms.counts.remove(room);
        }
        rooms.changed.entry(room.into()).or_default();
    }

    /// A page has opened in a room, under this name if it has one.
    pub(crate) fn open_page(&self, room: &str, name: &str) {
        let mut rooms = self.lock();
        let changes = rooms.changed.entry(room.into()).or_default();
        if !name.is_empty() {
            Changes::note(&mut changes.joined, &mut changes.left, name);
        }
    }

    /// A page has closed.
    pub(crate) fn close_page(&self, room: &str, name: &str) {
        if name.is_empty() {
            return;
        }
        let mut rooms = self.lock();
        let changes = rooms.changed.entry(room.into()).or_default();
        Changes::note(&mut changes.left, &mut changes.joined, name);
    }

    /// Takes notices that are due: the rooms, and the texts.
    fn take_notices(&self) -> Vec<(Box<str>, String)> {
        let mut rooms = self.lock();
        let mut notices = Vec::new();
        while notices.len() < NOTICES_MAX {
            let Some((room, Changes { joined, left })) = rooms.changed.pop_first() else { break };
            let members = rooms.counts.get(&room).copied().unwrap_or(0);
            let notice = json!({"members": members, "joined": joined, "left": left});
            notices.push((room, notice.to_string()));
        }
        notices
    }

    /// Publishes the notices that are due.
    pub(crate) fn announce(&self, sender: &Sender) {
        for (room, notice) in self.take_notices() {
            // A worker whose queue is full misses a notice. The next one has the count again.
            let _ = sender.try_publish(&notice_topic(&room), notice);
        }
    }
}

/// Returns the name in a query, `as=NAME`: at most 40 characters, none of which is a control
/// character.
pub(crate) fn name_of(query: Option<&str>) -> Box<str> {
    let fields = query.unwrap_or_default().split('&');
    let name = fields.filter_map(|field| field.strip_prefix("as=")).next().unwrap_or_default();
    let name = decode(name);
    let name = String::from_utf8_lossy(&name);
    let name: String = name.chars().filter(|char| !char.is_control()).take(40).collect();
    name.trim().into()
}

/// Decodes `%41`. What is no such code stays as it is.
fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.first_chunk::<2>().and_then(|code| str::from_utf8(code).ok());
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_has_the_count_and_the_names_since_the_last_one() {
        let members = Members::default();
        members.enter("/room/a");
        members.open_page("/room/a", "Ada");
        members.enter("/room/a");
        members.enter("/room/b");
        let notice = |room: &str, text: &str| (room.into(), text.to_owned());
        assert_eq!(
            members.take_notices(),
            [
                notice("/room/a", r#"{"joined":["Ada"],"left":[],"members":2}"#),
                notice("/room/b", r#"{"joined":[],"left":[],"members":1}"#),
            ]
        );
        assert_eq!(members.take_notices(), []);
        // A page that connects again.
        members.leave("/room/a");
        members.close_page("/room/a", "Ada");
        members.enter("/room/a");
        members.open_page("/room/a", "Ada");
        members.leave("/room/b");
        assert_eq!(
            members.take_notices(),
            [
                notice("/room/a", r#"{"joined":[],"left":[],"members":2}"#),
                notice("/room/b", r#"{"joined":[],"left":[],"members":0}"#),
            ]
        );
        assert_eq!(members.lock().counts.len(), 1, "an empty room is forgotten");
    }

    #[test]
    fn a_crowd_makes_few_notices_with_few_names() {
        let members = Members::default();
        for at in 0..1000 {
            members.enter("/room/a");
            members.open_page("/room/a", &format!("guest {at}"));
            members.enter(&format!("/room/{at:03}"));
        }
        let notices = members.take_notices();
        assert_eq!(notices.len(), NOTICES_MAX);
        while !members.take_notices().is_empty() {}
        for at in 0..1000 {
            members.close_page("/room/a", &format!("guest {at}"));
        }
        let notices = members.take_notices();
        assert_eq!((notices.len(), notices[0].1.matches("guest").count()), (1, NAMES_MAX));
    }

    #[test]
    fn a_name_comes_from_the_query() {
        for (query, name) in [
            (None, ""),
            (Some(""), ""),
            (Some("as=Ada"), "Ada"),
            (Some("x=y&as=%41da%20L.&as=other"), "Ada L."),
            (Some("as=%F0%9F%91%8D%zz%4"), "\u{1f44d}%zz%4"),
            (Some("as=%ff%00%0a"), "\u{fffd}"),
            (Some("as=%+41"), "%+41"),
        ] {
            assert_eq!(&*name_of(query), name, "{query:?}");
        }
        assert_eq!(name_of(Some(&format!("as={}", "n".repeat(100)))).len(), 40);
    }
}
