//! The server's handling of messages: rooms and an echo.

use std::fmt;

use tracing::debug;
use windlass_server::{
    Closed, Connection, Handler, Hub, Message, Rejected,
    http::{Accept, Reject, UpgradeRequest},
};

use super::refusal_log::RefusalLog;

/// The path that echoes.
pub(crate) const ECHO_PATH: &str = "/echo";

/// The paths of rooms. The part after the slash is the room's name.
pub(crate) const ROOMS: &str = "/room/*";

/// The response text for other paths.
pub(crate) const NOT_FOUND: &str =
    "there is nothing here: rooms are at /room/NAME, and the echo is at /echo";

/// Relays messages within rooms, or echoes them.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// Echo on every path.
    pub(crate) echoes: bool,
    pub(crate) rejection_log: RefusalLog,
    pub(crate) close_log: RefusalLog,
}

/// The purpose of a connection.
#[derive(Debug)]
pub(crate) enum Purpose {
    Echo,
    /// A room, which is a topic with the same name as its path.
    Room(Box<str>),
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => ECHO_PATH,
            Self::Room(path) => path,
        })
    }
}

impl Handler for Rooms {
    type Data = Purpose;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Purpose>, Reject> {
        let path = request.path();
        if self.echoes || path == ECHO_PATH {
            return Ok(Accept::new(Purpose::Echo));
        }
        if ROOMS.strip_suffix('*') == Some(path) {
            return Err(Reject::status(404).text("a room has a name: /room/NAME"));
        }
        Ok(Accept::new(Purpose::Room(path.into())))
    }

    fn on_rejected(&self, refused: &Rejected<'_>) {
        self.rejection_log.note_rejected(refused);
    }

    fn on_open(&self, connection: &mut Connection<'_>, purpose: &mut Purpose) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            // A peer that has already disconnected has no address any more.
            let peer =
                connection.peer().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string());
            debug!(id = %connection.id(), %peer, room = %purpose, "open");
        }
        if let Purpose::Room(room) = purpose {
            connection.subscribe(room);
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        purpose: &mut Purpose,
        message: Message<'_>,
    ) {
        match purpose {
            // This fails only after a Close frame, and then no reply is expected.
            Purpose::Echo => _ = connection.reply_in_place(message),
            Purpose::Room(room) => _ = connection.publish(room, message.to_out()),
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, _: &mut Purpose, closed: &Closed<'_>) {
        self.close_log.note_closed(closed);
    }
}
