//! The list of connections, and what the keys do with it. The help line names them.

use anyhow::Context as _;
use serde::Deserialize;
use windlass_server::printable;

use super::view::bytes;

/// The number of connections that are asked for.
const ROWS: usize = 100;

/// A row of `/connections`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ConnectionRow {
    id: String,
    address: String,
    state: String,
    transport: String,
    age_seconds: u64,
    bytes_in: Option<u64>,
    bytes_out: Option<u64>,
    buffered_bytes: u64,
    rooms: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ConnectionList {
    connections: Vec<ConnectionRow>,
    count: u64,
    complete: bool,
}

/// What the program is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    /// Another list.
    List,
    /// A request that disconnects clients: its path.
    Disconnect(String),
    Quit,
}

/// What the keys mean now.
#[derive(Debug)]
enum Input {
    Commands,
    /// The name of a room, up to the Enter key.
    Room(String),
    /// A question, and the request if the answer is yes.
    Confirm(String, String),
}

/// The list and its state.
#[derive(Debug)]
pub(super) struct Connections {
    sort: usize,
    room: String,
    rows: Vec<ConnectionRow>,
    count: u64,
    is_complete: bool,
    /// The ID of the selected connection, which may move in the list.
    selected: String,
    input: Input,
    /// The last key was a part of an escape sequence.
    is_in_sequence: bool,
    /// The outcome of the last request.
    message: String,
}

const SORTS: [&str; 3] = ["bytes", "age", "buffered"];

pub(super) const HELP: &str = "q quit  s sort  r room  up/down or k/j select  d disconnect  \
                               D disconnect the room";

impl Connections {
    pub(super) fn new() -> Self {
        Self {
            sort: 0,
            room: String::new(),
            rows: Vec::new(),
            count: 0,
            is_complete: true,
            selected: String::new(),
            input: Input::Commands,
            is_in_sequence: false,
            message: String::new(),
        }
    }

    /// The path of the request for the list.
    pub(super) fn path(&self) -> String {
        let room = if self.room.is_empty() {
            String::new()
        } else {
            format!("&room={}", encoded(&self.room))
        };
        format!("/connections?limit={ROWS}&sort={}{room}", SORTS[self.sort])
    }

    /// Takes the list of a response.
    pub(super) fn take(&mut self, text: &str) -> anyhow::Result<()> {
        let list: ConnectionList =
            serde_json::from_str(text).context("this is no list of connections")?;
        (self.rows, self.count, self.is_complete) = (list.connections, list.count, list.complete);
        if self.selected_at().is_none() {
            self.select(0);
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, message: String) {
        self.message = message;
    }

    fn selected_at(&self) -> Option<usize> {
        self.rows.iter().position(|row| row.id == self.selected)
    }

    fn select(&mut self, at: usize) {
        self.selected = self.rows.get(at).map(|row| row.id.clone()).unwrap_or_default();
    }

    /// Acts on keys. The last request counts, but keys after a disconnection or `q` are dropped.
    /// Sequences of other keys (ECMA-48, CSI and SS3) do nothing, except those of up and down where
    /// no name is typed and no question is open.
    pub(super) fn on_keys(&mut self, keys: &str) -> Asked {
        let (mut last, mut keys) = (Asked::Nothing, keys.chars().peekable());
        while let Some(mut key) = keys.next() {
            if self.is_in_sequence {
                // It ends with such a character. `[` is none: F4 of the console is `ESC [ [ D`.
                self.is_in_sequence = !matches!(key, '@'..='Z' | '\\'..='~');
                key = match (key, &self.input) {
                    ('A', Input::Commands) => 'k',
                    ('B', Input::Commands) => 'j',
                    _ => continue,
                };
            } else if key == '\x1b' && keys.next_if(|next| matches!(next, '[' | 'O')).is_some() {
                self.is_in_sequence = true;
                continue;
            }
            match self.on_key(key) {
                Asked::Nothing => {}
                Asked::List => last = Asked::List,
                end => return end,
            }
        }
        last
    }

    fn on_key(&mut self, key: char) -> Asked {
        self.message.clear();
        match std::mem::replace(&mut self.input, Input::Commands) {
            Input::Commands => self.on_command(key),
            Input::Confirm(_, path) if matches!(key, 'y' | 'Y') => Asked::Disconnect(path),
            Input::Confirm(..) => {
                self.message = "nobody was disconnected".to_owned();
                Asked::Nothing
            }
            Input::Room(name) if matches!(key, '\r' | '\n') => {
                self.room = name;
                Asked::List
            }
            // The escape key.
            Input::Room(_) if key == '\x1b' => Asked::Nothing,
            Input::Room(mut name) => {
                if matches!(key, '\x7f' | '\x08') {
                    name.pop();
                } else if !key.is_control() {
                    name.push(key);
                }
                self.input = Input::Room(name);
                Asked::Nothing
            }
        }
    }

    fn on_command(&mut self, key: char) -> Asked {
        let at = self.selected_at().unwrap_or_default();
        match key {
            'q' => return Asked::Quit,
            's' => {
                self.sort = (self.sort + 1) % SORTS.len();
                return Asked::List;
            }
            'r' => self.input = Input::Room(String::new()),
            'k' => self.select(at.saturating_sub(1)),
            'j' => self.select((at + 1).min(self.rows.len().saturating_sub(1))),
            'd' => match self.rows.get(at) {
                None => self.message = "there is no connection".to_owned(),
                Some(row) => {
                    let who = format!("{} from {}", row.id, row.address);
                    self.input = Input::Confirm(who, format!("/disconnect?id={}", row.id));
                }
            },
            'D' if self.room.is_empty() => {
                self.message = "r chooses a room first".to_owned();
            }
            'D' => {
                let who = format!("all {} in {}", self.count, self.room);
                let path = format!("/disconnect?room={}", encoded(&self.room));
                self.input = Input::Confirm(who, path);
            }
            _ => {}
        }
        Asked::Nothing
    }

    /// The lines of the list.
    pub(super) fn lines(&self) -> Vec<String> {
        let missing = if self.is_complete { "" } else { ", some workers did not answer" };
        let of_room = if self.room.is_empty() {
            String::new()
        } else {
            format!(" in {}", printable(&self.room))
        };
        let sort = SORTS[self.sort];
        let mut lines = vec![
            String::new(),
            format!("connections by {sort}: {}{of_room}{missing}", self.count),
            "  id             state      transport        age       in      out  buffered  \
             address, rooms"
                .to_owned(),
        ];
        lines.extend(self.rows.iter().map(|row| {
            let mark = if row.id == self.selected { '>' } else { ' ' };
            let count = |of: Option<u64>| of.map_or_else(|| "-".to_owned(), |of| bytes(of as f64));
            format!(
                "{mark} {:<14} {:<10} {:<9} {:>9}s {:>8} {:>8} {:>9}  {} {}",
                printable(&row.id),
                printable(&row.state),
                printable(&row.transport),
                row.age_seconds,
                count(row.bytes_in),
                count(row.bytes_out),
                bytes(row.buffered_bytes as f64),
                printable(&row.address),
                printable(&row.rooms.join(" ")),
            )
        }));
        lines
    }

    /// The last line: a question, what has happened, or the keys.
    pub(super) fn last_line(&self) -> String {
        match &self.input {
            Input::Room(name) => {
                format!("room, such as /room/lobby (empty: all), then Enter: {}", printable(name))
            }
            Input::Confirm(who, _) => format!("disconnect {}? y/n", printable(who)),
            Input::Commands if self.message.is_empty() => HELP.to_owned(),
            Input::Commands => printable(&self.message),
        }
    }
}

/// A value in a query (RFC 3986 section 2.1).
fn encoded(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ids: &[&str]) -> String {
        let row = |id: &&str| {
            format!(
                "{{\"id\":\"{id}\",\"address\":\"a\\u001b:1\",\"state\":\"open\",\
                 \"transport\":\"tcp\",\"age_seconds\":5,\"idle_seconds\":0,\"bytes_in\":2048,\
                 \"bytes_out\":null,\"buffered_bytes\":7,\"rooms\":[\"/room/a\",\"b\"]}}"
            )
        };
        let rows: Vec<_> = ids.iter().map(row).collect();
        format!("{{\"connections\":[{}],\"count\":9,\"complete\":false}}", rows.join(","))
    }

    fn connections(ids: &[&str]) -> Connections {
        let mut connections = Connections::new();
        connections.take(&list(ids)).unwrap();
        connections
    }

    #[test]
    fn keys_choose_order_and_room() {
        let mut all = connections(&[]);
        assert_eq!(all.path(), "/connections?limit=100&sort=bytes");
        assert_eq!(all.on_keys("s"), Asked::List);
        assert_eq!(all.path(), "/connections?limit=100&sort=age");
        assert_eq!(all.on_keys("ss"), Asked::List);
        assert_eq!(all.on_keys("r/room/é x"), Asked::Nothing);
        let line = "room, such as /room/lobby (empty: all), then Enter: /room/é x";
        assert_eq!(all.last_line(), line);
        assert_eq!(all.on_keys("y\x7f\n"), Asked::List);
        assert_eq!(all.path(), "/connections?limit=100&sort=bytes&room=%2Froom%2F%C3%A9%20x");
        assert_eq!(all.on_keys("rother\x1b"), Asked::Nothing);
        assert!(all.path().ends_with("%20x"), "escape keeps it: {}", all.path());
        assert_eq!(all.on_keys("r\r"), Asked::List);
        assert_eq!(all.path(), "/connections?limit=100&sort=bytes");
        assert_eq!((all.on_keys("x"), all.on_keys("q")), (Asked::Nothing, Asked::Quit));
    }

    #[test]
    fn a_disconnection_is_confirmed() {
        let mut all = connections(&["0.1.0", "1.2.3"]);
        assert_eq!(all.on_keys("\x1b[Bd"), Asked::Nothing);
        assert_eq!(all.last_line(), "disconnect 1.2.3 from a\\u{1b}:1? y/n");
        // The row moves, and the question stays that of its connection.
        all.take(&list(&["1.2.3", "0.1.0"])).unwrap();
        assert_eq!(all.on_keys("y"), Asked::Disconnect("/disconnect?id=1.2.3".to_owned()));
        for no in ["dn", "dq", "d\n", "d\x1b"] {
            assert_eq!(all.on_keys(no), Asked::Nothing, "{no:?}");
            assert_eq!(all.last_line(), "nobody was disconnected");
        }
        assert_eq!((all.on_keys("D"), all.on_keys("y")), (Asked::Nothing, Asked::Nothing));
        all.on_keys("ra&b\n");
        assert_eq!(all.on_keys("D"), Asked::Nothing);
        assert_eq!(all.last_line(), "disconnect all 9 in a&b? y/n");
        assert_eq!(all.on_keys("y"), Asked::Disconnect("/disconnect?room=a%26b".to_owned()));
        let mut none = connections(&[]);
        none.on_keys("jkd");
        assert_eq!(none.last_line(), "there is no connection");
        none.on_keys("x");
        assert_eq!(none.last_line(), HELP);
    }

    #[test]
    fn other_keys_do_nothing_and_no_key_takes_a_confirmed_disconnection_back() {
        let mut all = connections(&["0.1.0", "1.2.3"]);
        all.on_keys("ra\n");
        let before = format!("{all:?}");
        // Left, Ctrl-Left, Left of SS3, F4 of the console, and one that comes in two parts.
        for keys in ["\x1b[D", "\x1b[1;5D", "\x1bOD", "\x1b[[D", "\x1b[15", "~"] {
            assert_eq!(all.on_keys(keys), Asked::Nothing, "{keys:?}");
        }
        assert_eq!(format!("{all:?}"), before);
        for more in ["s", "q", "dy"] {
            let asked = all.on_keys(&format!("dy{more}"));
            assert_eq!(asked, Asked::Disconnect("/disconnect?id=0.1.0".to_owned()), "{more}");
            assert_eq!(format!("{all:?}"), before);
        }
        assert_eq!(all.on_keys("sq"), Asked::Quit);
    }

    #[test]
    fn arrow_keys_are_no_part_of_a_name_and_answer_no_question() {
        let mut all = connections(&["0.1.0", "1.2.3"]);
        all.on_keys("ra\x1b[Ab\x1b[B\x1bOA\n");
        assert!(all.path().ends_with("&room=ab"), "{}", all.path());
        all.on_keys("d\x1b[A\x1b[B");
        assert_eq!(all.on_keys("y"), Asked::Disconnect("/disconnect?id=0.1.0".to_owned()));
    }

    #[test]
    fn a_row_says_what_is_known_and_marks_the_selected_one() {
        let mut all = connections(&["0.1.0", "1.2.3", "1.3.0"]);
        all.on_keys("jjjk");
        let lines = all.lines();
        assert_eq!(lines[1], "connections by bytes: 9, some workers did not answer");
        let words: Vec<_> = lines[4].split_whitespace().collect();
        let expected =
            [">", "1.2.3", "open", "tcp", "5s", "2.0KiB", "-", "7B", "a\\u{1b}:1", "/room/a", "b"];
        assert_eq!(words, expected);
        assert!(lines[3].starts_with("  0.1.0") && lines[5].starts_with("  1.3.0"), "{lines:?}");
        // A selected connection that has gone leaves the selection to the first.
        all.take(&list(&["1.3.0"])).unwrap();
        assert!(all.lines()[3].starts_with("> 1.3.0"));
    }
}
