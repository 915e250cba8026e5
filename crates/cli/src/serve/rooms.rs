//! The server's handling of messages: rooms, an echo, and the live view of pages.

use std::{fmt, sync::Arc};

use tracing::debug;
use windlass_server::{
    CloseCode, Closed, Connection, Handler, Hub, Message, Rejected,
    http::{Accept, Reject, UpgradeRequest},
    printable,
};

use super::{
    args::ROOM_NAME_OPTION,
    load_run::{LOAD, LoadRun, LoadRuns},
    members::{Members, name_of},
    refusal_log,
    tokens::ClientTokens,
};

/// The path that echoes.
pub(crate) const ECHO_PATH: &str = "/echo";

/// The paths of rooms. The part after the slash is the room's name.
pub(crate) const ROOMS: &str = "/room/*";

/// The beginning of the paths of rooms.
const ROOM: &str = "/room/";

/// The paths on which a page gets the live status and the notices of a room.
pub(crate) const LIVE: &str = "/live/*";

/// The beginning of these paths.
const LIVE_OF: &str = "/live/";

/// The beginning of the topics of notices.
pub(crate) const NOTICES: &str = "$members";

/// Returns the maximum length of the topics of rooms and of their notices, for this maximum length
/// of a room's name.
pub(crate) const fn topic_len_max(name_len_max: usize) -> usize {
    NOTICES.len() + ROOM.len() + name_len_max
}

/// Returns the topic of the notices of a room. No path begins with `$`, so no client is in a room
/// of this name.
pub(crate) fn notice_topic(room: &str) -> String {
    format!("{NOTICES}{room}")
}

/// The response text for other paths.
pub(crate) const NOT_FOUND: &str =
    "there is nothing here: rooms are at /room/NAME, and the echo is at /echo";

/// Relays messages within rooms, or echoes them.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// Echo on every path.
    pub(crate) echoes: bool,
    /// Maximum length of a room's name in bytes.
    pub(crate) name_len_max: usize,
    pub(crate) members: Arc<Members>,
    /// The tokens of clients, if they need one.
    pub(crate) tokens: Option<Arc<ClientTokens>>,
    /// The runs of the page's button, if there is one.
    pub(crate) load_runs: Option<Arc<LoadRuns>>,
}

/// The purpose of a connection.
#[derive(Debug)]
pub(crate) enum Purpose {
    Echo,
    /// A room, which is a topic with the same name as its path.
    Room(Arc<str>),
    /// The live view of a page in this room, and the name of its user.
    Live {
        room: Arc<str>,
        name: Box<str>,
    },
    /// A load run, until it is started.
    Load(Option<LoadRun>),
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Echo => f.write_str(ECHO_PATH),
            Self::Room(path) => f.write_str(path),
            Self::Live { room, .. } => write!(f, "live view of {room}"),
            Self::Load(_) => f.write_str(LOAD),
        }
    }
}

impl Rooms {
    /// Rejects the name of a room that is too long: the server keeps it for as long as the room.
    fn check(&self, name: &str) -> Result<(), Reject> {
        let (len, max) = (name.len(), self.name_len_max);
        if len <= max {
            return Ok(());
        }
        let text = format!(
            "the name of the room has {len} bytes in this path, and the limit is {max}; choose a \
             shorter one, or raise {ROOM_NAME_OPTION}"
        );
        Err(Reject::status(400).text(text))
    }
}

impl Handler for Rooms {
    type Data = Purpose;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Purpose>, Reject> {
        if let Some(tokens) = &self.tokens {
            tokens.check(request)?;
        }
        let path = request.path();
        if self.echoes || path == ECHO_PATH {
            return Ok(Accept::new(Purpose::Echo));
        }
        if let Some(runs) = self.load_runs.as_ref().filter(|_| path == LOAD) {
            return Ok(Accept::new(Purpose::Load(Some(runs.begin(request)?))));
        }
        if matches!(path, ROOM | LIVE_OF) {
            return Err(Reject::status(404).text("a room has a name: /room/NAME"));
        }
        if let Some(name) = path.strip_prefix(LIVE_OF) {
            self.check(name)?;
            let room = format!("{ROOM}{name}").into();
            return Ok(Accept::new(Purpose::Live { room, name: name_of(request.query()) }));
        }
        self.check(path.strip_prefix(ROOM).unwrap_or(path))?;
        Ok(Accept::new(Purpose::Room(path.into())))
    }

    fn on_rejected(&self, refused: &Rejected<'_>) {
        refusal_log::note_rejected(refused);
    }

    fn on_open(&self, connection: &mut Connection<'_>, purpose: &mut Purpose) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            // A peer that has already disconnected has no address any more.
            let peer =
                connection.peer().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string());
            debug!(id = %connection.id(), %peer, room = %printable(&purpose.to_string()), "open");
        }
        match purpose {
            Purpose::Echo => {}
            Purpose::Room(room) => {
                self.members.enter(room);
                // It fails only if the connection is closing already.
                _ = connection.subscribe_shared(room);
            }
            Purpose::Live { room, name } => {
                // Without the live status (--no-status) there are still the notices.
                connection.watch_status();
                let notices = self.members.open_page(room, name);
                _ = connection.subscribe_shared(&notices);
            }
            Purpose::Load(run) => {
                _ = connection.send("Running for five seconds");
                if let Some(run) = run.take() {
                    run.start(connection.id());
                }
            }
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
            Purpose::Room(room) => _ = connection.publish_to_others(room, message.to_out()),
            // This fails only after a Close frame.
            Purpose::Live { .. } | Purpose::Load(_) => {
                _ = connection.close(CloseCode::POLICY_VIOLATION, "this path takes no messages");
            }
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, purpose: &mut Purpose, closed: &Closed<'_>) {
        match purpose {
            Purpose::Echo | Purpose::Load(_) => {}
            Purpose::Room(room) => self.members.leave(room),
            Purpose::Live { room, name } => self.members.close_page(room, name),
        }
        refusal_log::note_closed(closed);
    }
}
