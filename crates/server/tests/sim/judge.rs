//! The handler of the server: it checks what it gets.

use std::rc::Rc;

use windlass_server::{
    CloseCode, CloseReason, Closed, Connection, Handler, Hub, Message, SendError,
    http::{Accept, Reject, UpgradeRequest},
};

use crate::bed::{BUFFER_MAX, Session, count};

/// The topic that all clients are subscribed to.
pub(crate) const ROOM: &str = "room";

/// Client, number of the message, whether it is for the room, and bytes of a pattern.
pub(crate) fn payload(client: usize, number: usize, is_for_room: bool, len: usize) -> Vec<u8> {
    let two = |number: usize| u16::try_from(number).unwrap().to_be_bytes();
    let head = two(client).into_iter().chain(two(number)).chain([u8::from(is_for_room)]);
    let byte = |place: usize| (place.wrapping_mul(31) ^ client.wrapping_mul(7) ^ number) as u8;
    head.chain((0..len).map(byte)).collect()
}

/// Takes a message apart, and checks its bytes. Returns the client, the number of the message and
/// whether it is for the room.
pub(crate) fn read(session: &Session, bytes: &[u8]) -> (usize, usize, bool) {
    let two = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let (client, number) = (two(0), two(2));
    let planned = session.plans[client][number];
    let is_right = bytes == payload(client, number, planned.is_for_room, planned.len);
    assert!(is_right, "message {number} of client {client} has other bytes");
    (client, number, planned.is_for_room)
}

pub(crate) struct Judge(pub(crate) Rc<Session>);

/// What is known of a connection.
pub(crate) struct Known {
    client: usize,
    /// The number of messages so far.
    messages: usize,
}

impl Judge {
    fn check_open(&self, connection: &Connection<'_>, known: &Known) {
        let open = self.0.open.borrow();
        assert_eq!(open.get(&connection.id().to_bits()), Some(&known.client), "it is not open");
    }
}

impl Handler for Judge {
    type Data = Known;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Known>, Reject> {
        let client = request.path()[1..].parse().unwrap();
        Ok(Accept::new(Known { client, messages: 0 }))
    }

    fn on_open(&self, connection: &mut Connection<'_>, known: &mut Known) {
        let before = self.0.open.borrow_mut().insert(connection.id().to_bits(), known.client);
        assert_eq!(before, None, "opened twice");
        count(&self.0.opened);
        connection.subscribe(ROOM).unwrap();
    }

    fn on_message(&self, connection: &mut Connection<'_>, known: &mut Known, message: Message<'_>) {
        self.check_open(connection, known);
        let (client, number, is_for_room) = read(&self.0, message.as_bytes());
        assert_eq!((client, number), (known.client, known.messages), "lost or reordered");
        known.messages += 1;
        assert!(connection.buffered() <= BUFFER_MAX, "{} bytes wait", connection.buffered());
        if is_for_room {
            let bytes = message.as_bytes().to_vec();
            connection.publish(ROOM, &bytes[..]);
            return;
        }
        let sent = connection.reply_in_place(message);
        assert!(matches!(sent, Ok(()) | Err(SendError::Closed)), "{sent:?}");
    }

    fn on_drain(&self, connection: &mut Connection<'_>, known: &mut Known) {
        self.check_open(connection, known);
        let _ = connection.close(CloseCode::GOING_AWAY, "");
    }

    fn on_close(&self, _: &mut Hub<'_>, known: &mut Known, closed: &Closed<'_>) {
        let before = self.0.open.borrow_mut().remove(&closed.id.to_bits());
        assert_eq!(before, Some(known.client), "closed without having been opened");
        count(&self.0.closed);
        if closed.reason == CloseReason::Evicted {
            count(&self.0.evicted);
        }
        let is_clean = closed.reason == CloseReason::Peer && closed.code == Some(CloseCode::NORMAL);
        if is_clean {
            let sent = self.0.plans[known.client].len();
            assert_eq!(known.messages, sent, "a clean end of a part");
        }
    }
}
