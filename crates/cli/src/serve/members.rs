//! The members of the rooms, over all workers, and the notices about them.
//!
//! 1. Workers change the counts when a connection opens or ends, and at no other time.
//! 2. The main thread publishes the notices twice a second, so a crowd at the door costs a room two
//!    messages a second. A notice is a message on the connections of pages at `/live/NAME`. Members
//!    that are no pages get none.
//! 3. Strangers choose the rooms. Changes are noted for rooms with an open page only, and each such
//!    room is due at most once. So all memory here is bounded by the open connections.
//! 4. The room whose change is the oldest gets its notice first. A room that changes all the time
//!    waits behind all others that are due.
//! 5. The members of a room, its entry here and its topic share one copy of its name.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::json;
use windlass_server::Sender;

use super::rooms::notice_topic;

/// Number of names of each kind in a notice. The others are only counted.
const NAMES_MAX: usize = 8;

/// Number of rooms with notices at a time: a quarter of the queue to a worker. The others have
/// theirs half a second later.
const NOTICES_MAX: usize = 1024;

/// Number of rooms up to which memory is not released.
const KEPT: usize = 4096;

/// The members of all rooms.
#[derive(Debug, Default)]
pub(crate) struct Members(Mutex<Rooms>);

#[derive(Debug, Default)]
struct Rooms {
    /// The rooms with members or pages, by their paths.
    rooms: HashMap<Arc<str>, Room>,
    /// The rooms whose notices are due, by the number of their first change since the last notice.
    due: BTreeMap<u64, Arc<str>>,
    /// The number of the next change.
    next: u64,
}

#[derive(Debug, Default)]
struct Room {
    members: u64,
    /// Most rooms of strangers have none.
    pages: Option<Box<Pages>>,
}

/// The open pages of a room, and what has happened since its last notice.
#[derive(Debug)]
struct Pages {
    count: u64,
    /// The topic of the notices.
    topic: Arc<str>,
    /// The key in [`Rooms::due`].
    due: Option<u64>,
    joined: Vec<Box<str>>,
    left: Vec<Box<str>>,
}

/// Adds a name, unless the same one has just come or gone: a page that connects again is no news.
fn note(here: &mut Vec<Box<str>>, there: &mut Vec<Box<str>>, name: &str) {
    if name.is_empty() {
        return;
    }
    if let Some(at) = there.iter().position(|other| **other == *name) {
        there.remove(at);
    } else if here.len() < NAMES_MAX {
        here.push(name.into());
    }
}

impl Rooms {
    /// Changes a room, which exists or is new. Its notice is due then, if it has a page.
    fn change(&mut self, room: &mut Arc<str>, change: impl FnOnce(&mut Room)) {
        if let Some((known, _)) = self.rooms.get_key_value(room) {
            *room = Arc::clone(known);
        }
        let entry = self.rooms.entry(Arc::clone(room)).or_default();
        change(entry);
        match &mut entry.pages {
            Some(pages) if pages.count == 0 => {
                let due = pages.due;
                entry.pages = None;
                due.and_then(|due| self.due.remove(&due));
            }
            Some(pages) if pages.due.is_none() => {
                pages.due = Some(self.next);
                self.due.insert(self.next, Arc::clone(room));
                self.next += 1;
            }
            _ => {}
        }
        if entry.members == 0 && entry.pages.is_none() {
            self.rooms.remove(room);
            if self.rooms.capacity() > KEPT.max(8 * self.rooms.len()) {
                self.rooms.shrink_to(2 * self.rooms.len());
            }
        }
    }
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, Rooms> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to a room is open. It gets the name that all members share.
    pub(crate) fn enter(&self, room: &mut Arc<str>) {
        self.lock().change(room, |room| room.members += 1);
    }

    /// A connection to a room has ended.
    pub(crate) fn leave(&self, room: &mut Arc<str>) {
        self.lock().change(room, |room| room.members = room.members.saturating_sub(1));
    }

    /// A page has opened in a room, under this name if it has one. It gets the name that all share.
    /// Returns the topic of the notices.
    pub(crate) fn open_page(&self, room: &mut Arc<str>, name: &str) -> Arc<str> {
        let topic = notice_topic(room);
        let mut shared = None;
        self.lock().change(room, |room| {
            let pages = room.pages.get_or_insert_with(|| {
                let (joined, left) = (Vec::new(), Vec::new());
                Box::new(Pages { count: 0, topic: topic.as_str().into(), due: None, joined, left })
            });
            pages.count += 1;
            note(&mut pages.joined, &mut pages.left, name);
            shared = Some(Arc::clone(&pages.topic));
        });
        shared.unwrap_or_else(|| topic.into())
    }

    /// A page has closed.
    pub(crate) fn close_page(&self, room: &mut Arc<str>, name: &str) {
        self.lock().change(room, |room| {
            let Some(pages) = &mut room.pages else { return };
            pages.count -= 1;
            note(&mut pages.left, &mut pages.joined, name);
        });
    }

    /// Takes notices that are due: their topics and texts.
    fn take_notices(&self) -> Vec<(Arc<str>, String)> {
        let mut rooms = self.lock();
        let mut notices = Vec::new();
        while notices.len() < NOTICES_MAX {
            let Some((_, room)) = rooms.due.pop_first() else { break };
            let Some(Room { members, pages: Some(pages) }) = rooms.rooms.get_mut(&room) else {
                continue;
            };
            pages.due = None;
            let (joined, left) =
                (std::mem::take(&mut pages.joined), std::mem::take(&mut pages.left));
            let notice = json!({"members": members, "joined": joined, "left": left});
            notices.push((Arc::clone(&pages.topic), notice.to_string()));
        }
        notices
    }

    /// Publishes the notices that are due.
    pub(crate) fn announce(&self, sender: &Sender) {
        for (topic, notice) in self.take_notices() {
            // A worker whose queue is full misses a notice. The next one has the count again.
            let _ = sender.try_publish(&topic, notice);
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

    /// A connection: its room, and the name of its page.
    fn path(room: &str) -> Arc<str> {
        format!("/room/{room}").into()
    }

    fn notices(members: &Members) -> Vec<(String, String)> {
        let notices = members.take_notices().into_iter();
        notices.map(|(topic, text)| (topic.to_string(), text)).collect()
    }

    fn notice(room: &str, text: &str) -> (String, String) {
        (format!("$members/room/{room}"), text.to_owned())
    }

    #[test]
    fn a_notice_has_the_count_and_the_names_since_the_last_one() {
        let members = Members::default();
        let (mut a, mut b) = (path("a"), path("b"));
        members.enter(&mut a);
        members.open_page(&mut a, "Ada");
        members.enter(&mut a);
        members.open_page(&mut a, "");
        members.enter(&mut b);
        let expected = notice("a", r#"{"joined":["Ada"],"left":[],"members":2}"#);
        assert_eq!(notices(&members), [expected], "nobody looks at the other room");
        assert_eq!(notices(&members), []);
        // A page that connects again.
        members.leave(&mut a);
        members.close_page(&mut a, "Ada");
        members.enter(&mut a);
        members.open_page(&mut a, "Ada");
        let expected = notice("a", r#"{"joined":[],"left":[],"members":2}"#);
        assert_eq!(notices(&members), [expected]);
        // A page sees who was there before it.
        members.open_page(&mut b, "Bob");
        let expected = notice("b", r#"{"joined":["Bob"],"left":[],"members":1}"#);
        assert_eq!(notices(&members), [expected]);
        for (name, left) in [("Ada", true), ("", false)] {
            members.close_page(&mut a, name);
            assert_eq!(notices(&members).len(), usize::from(left), "the last page is told nothing");
        }
        members.close_page(&mut b, "Bob");
        members.leave(&mut b);
        assert_eq!(members.lock().rooms.len(), 1, "an empty room is forgotten");
    }

    #[test]
    fn a_crowd_makes_few_notices_with_few_names() {
        let members = Members::default();
        let mut room = path("a");
        members.open_page(&mut room, "");
        for at in 0..1000 {
            members.enter(&mut room);
            members.open_page(&mut room, &format!("guest {at}"));
        }
        assert_eq!(notices(&members).len(), 1);
        for at in 0..1000 {
            members.close_page(&mut room, &format!("guest {at}"));
        }
        let notices = notices(&members);
        assert_eq!((notices.len(), notices[0].1.matches("guest").count()), (1, NAMES_MAX));
    }

    /// Names that change all the time took memory, and the notices of others never came (issue 29).
    #[test]
    fn names_that_come_and_go_take_no_memory_and_hold_up_no_notice() {
        let members = Members::default();
        let mut victim = path("zebra");
        for at in 0..100_000 {
            let mut room = path(&format!("{at}{}", "n".repeat(200)));
            members.enter(&mut room);
            members.leave(&mut room);
            members.open_page(&mut room, "Mallory");
            members.close_page(&mut room, "Mallory");
        }
        let rooms = members.lock();
        assert_eq!((rooms.rooms.len(), rooms.due.len()), (0, 0));
        assert!(rooms.rooms.capacity() <= KEPT, "{}", rooms.rooms.capacity());
        drop(rooms);
        members.enter(&mut victim);
        members.open_page(&mut victim, "Ada");
        assert_eq!(notices(&members).len(), 1);
    }

    #[test]
    fn the_oldest_change_is_told_first_and_each_room_waits_once() {
        let members = Members::default();
        let names = (0..NOTICES_MAX + 2).rev().map(|at| path(&format!("{at:05}")));
        let mut rooms: Vec<_> = names.collect();
        for _ in 0..3 {
            for room in &mut rooms {
                members.open_page(room, "");
            }
        }
        let first = members.take_notices();
        // Rooms that change again wait behind the others.
        for room in &mut rooms {
            members.enter(room);
        }
        let second = members.take_notices();
        let told: Vec<_> = first.iter().chain(&second).map(|(topic, _)| &**topic).collect();
        let expected = rooms.iter().cycle().map(|room| notice_topic(room));
        let expected: Vec<_> = expected.take(2 * NOTICES_MAX).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn all_members_share_one_name_and_all_pages_one_topic() {
        let members = Members::default();
        let mut rooms = [path("a"), path("a"), path("a")];
        let [one, two, three] = &mut rooms;
        members.enter(one);
        members.enter(two);
        let topic = members.open_page(three, "Ada");
        assert!(Arc::ptr_eq(one, two) && Arc::ptr_eq(two, three));
        assert_eq!(Arc::strong_count(one), 3 + 2, "the entry has one, and what is due");
        let mut fourth = path("a");
        assert!(Arc::ptr_eq(&topic, &members.open_page(&mut fourth, "Bob")));
    }

    #[test]
    fn the_table_shrinks_when_most_rooms_are_gone() {
        let members = Members::default();
        let mut rooms: Vec<_> = (0..50_000).map(|at| path(&at.to_string())).collect();
        rooms.iter_mut().for_each(|room| members.enter(room));
        assert!(members.lock().rooms.capacity() >= rooms.len());
        rooms.iter_mut().skip(1).for_each(|room| members.leave(room));
        assert!(members.lock().rooms.capacity() <= 2 * KEPT, "{}", members.lock().rooms.capacity());
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
