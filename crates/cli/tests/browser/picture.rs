//! The picture of the page in the README. It is no test, and runs when it is asked for:
//!
//! ```sh
//! cargo test --release -p windlass-cli --test browser -- --ignored picture
//! ```

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tungstenite::Message;

use crate::{
    appearance::{WIDE, converse},
    chat::join,
    chromium::Browser,
    harness::{Running, Server, windlass},
    page::Page,
};

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/page.png");

/// Rooms with their members and their messages in a second.
const ROOMS: [(&str, usize, u32); 3] = [("garden", 12, 40), ("kitchen", 5, 20), ("attic", 3, 5)];

/// Takes the picture of a server that has been under load for a minute.
pub(crate) fn of_a_minute_under_load(browser: &Browser) {
    let server = Server::start(&["--workers", "2"]);
    let over = Arc::new(AtomicBool::new(false));
    let load = format!("ws://{}/echo", server.address);
    let rate = ["--connections", "200", "--rate", "20000", "--duration", "120"];
    let mut command = windlass(&[&["load", &load], &rate[..]].concat());
    let running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _load = Running(running.expect("the program is built"));
    let rooms = ROOMS.map(|room| thread::spawn(talk(server.address, room, Arc::clone(&over))));
    let devtools = browser.connect();
    let open = || Page::open(&devtools, server.address, "");
    let (ada, grace) = (open(), open());
    ada.0.show_on(WIDE);
    ada.set_name("Ada");
    grace.set_name("Grace");
    converse(&ada, &grace);
    for up in ["/up [3-9][0-9] s/", "/up [6-9][0-9] s/"] {
        ada.0.wait(&format!("{up}.test(document.querySelector('#about').textContent)"));
    }
    ada.fill("#seconds", "5");
    ada.0.press("Enter");
    ada.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
    ada.0.evaluate("document.activeElement.blur()");
    fs::write(Path::new(PICTURE), ada.save("readme", WIDE)).expect("it can be written");
    over.store(true, Ordering::Relaxed);
    for room in rooms {
        room.join().expect("all messages come");
    }
}

/// Sends messages to a room at their rate, and reads them at all members.
fn talk(
    server: SocketAddr,
    (room, members, per_s): (&'static str, usize, u32),
    over: Arc<AtomicBool>,
) -> impl FnOnce() + Send {
    move || {
        let path = format!("/room/{room}");
        let mut members: Vec<_> = (0..members).map(|_| join(server, &path)).collect();
        while !over.load(Ordering::Relaxed) {
            members[0].send(Message::text("a message")).expect("it is sent");
            for member in &mut members[1..] {
                member.read().expect("it comes");
            }
            // sleep: the room has this rate.
            thread::sleep(Duration::from_secs(1) / per_s);
        }
    }
}
