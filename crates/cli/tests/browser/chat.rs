//! Tabs and other clients in rooms.

use std::{net::SocketAddr, net::TcpStream};

use rustix::process::Signal;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::{
    chromium::Browser,
    forwarder::Forwarder,
    harness::{Server, WAIT_MAX},
    page::{Entry, Page, entry},
};

/// Connects a client that is not a browser to the room of this path.
pub(crate) fn join(server: SocketAddr, path: &str) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, WAIT_MAX).expect("the server listens");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    let (socket, _) =
        tungstenite::client(format!("ws://{server}{path}"), stream).expect("it lets us in");
    socket
}

pub(crate) fn two_tabs_of_a_room_read_each_other_once(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let (ada, grace) = (
        Page::open(&devtools, server.address, ""),
        Page::open(&devtools, server.address, "room/lobby"),
    );
    ada.set_name("Ada");
    grace.set_name("Grace");
    ada.say("Is anybody here?");
    grace.wait_for_message("Is anybody here?");
    grace.say("Yes: 2 < 3 & ü 👍");
    ada.wait_for_message("Yes: 2 < 3 & ü 👍");
    // The server sends in order. If Ada had received her own message, it would be in her list twice
    // now.
    let (first, second) = ("Is anybody here?", "Yes: 2 < 3 & ü 👍");
    assert_eq!(ada.messages(), [entry("own", "Ada", first), entry("", "Grace", second)]);
    assert_eq!(grace.messages(), [entry("", "Ada", first), entry("own", "Grace", second)]);
    assert_eq!(
        ada.0.evaluate("document.querySelector('#text').value"),
        "",
        "what was sent is gone from the field"
    );
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn another_room_reads_nothing_of_it(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let open = |rest| Page::open(&devtools, server.address, rest);
    let (ada, grace, alan, kurt) =
        (open(""), open("room/lobby"), open("room/attic"), open("room/%61ttic?x#y"));
    for (page, name) in [(&ada, "Ada"), (&grace, "Grace"), (&alan, "Alan"), (&kurt, "Kurt")] {
        page.set_name(name);
    }
    ada.say("down here");
    grace.wait_for_message("down here");
    kurt.say("up here");
    alan.wait_for_message("up here");
    assert_eq!(alan.messages(), [entry("", "Kurt", "up here")]);
    assert_eq!(kurt.messages(), [entry("own", "Kurt", "up here")]);
    // The form changes to another room, which does not show the old room's messages.
    grace.wait_live();
    grace.fill("#room", "attic");
    grace.0.press("Enter");
    grace.wait_for_message("You are in attic.");
    assert_eq!(grace.0.evaluate("location.pathname"), "/room/attic");
    alan.say("Accept!");
    grace.wait_for_message("Accept!");
    assert_eq!(grace.messages(), [entry("", "Alan", "Accept!")]);
    ada.say("Still there?");
    assert_eq!(ada.messages().len(), 2);
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn a_room_is_a_path_for_other_clients(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "room/garden%20shed");
    assert_eq!(page.text("#address"), format!("ws://{}/room/garden%20shed", server.address));
    assert_eq!(page.0.evaluate("document.querySelector('#link').pathname"), "/room/garden%20shed");
    let mut client = join(server.address, "/room/garden%20shed");
    client.send(Message::text("I am in")).expect("it is sent");
    page.wait_for_message("I am in");
    page.set_name("Ada");
    page.say("\"quoted\"");
    let Ok(Message::Text(text)) = client.read() else { panic!("the message comes as text") };
    let message: Value = serde_json::from_str(&text).expect("the page writes JSON");
    assert_eq!(message, json!({"name": "Ada", "text": "\"quoted\""}));
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// A name that is cut within a character cannot be encoded. The names `.` and `..` would change the
/// path (issue 13).
pub(crate) fn strange_names_are_rooms_or_refused(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let long = "a".repeat(79);
    let page = Page::open(&devtools, server.address, &format!("#{long}\u{1f44d}"));
    assert_eq!(page.0.evaluate("document.title"), "lobby · Windlass");
    let enter = |page: &Page, name: &str| {
        page.wait_live();
        // Set by a script, because typed text is never cut within a character.
        let name = serde_json::to_string(name).expect("text").replace("HALF", "\\ud83d");
        page.0.evaluate(&format!(
            "(() => {{
                const field = document.querySelector('#room');
                field.value = {name};
                field.dispatchEvent(new Event('input'));
                document.querySelector('#enter').click();
                return location.pathname;
            }})()"
        ))
    };
    for (name, path, shown) in [
        (&*format!("{long}HALF"), &*format!("/room/{long}%EF%BF%BD"), &*format!("{long}\u{fffd}")),
        (
            "\u{1f44d}/:+?#%41\\..",
            "/room/%F0%9F%91%8D/%3A%2B%3F%23%2541%5C..",
            "\u{1f44d}/:+?#%41\\..",
        ),
        ("...", "/room/...", "..."),
        ("echo", "/room/echo", "echo"),
    ] {
        assert_eq!(enter(&page, name), path);
        page.wait_for_message(&format!("You are in {shown}."));
        // Another tab with this address is in the same room.
        let other = Page::open(&devtools, server.address, path.trim_start_matches('/'));
        other.say("Here too");
        page.wait_for_message("Here too");
        assert_eq!(page.text("#address"), other.text("#address"));
    }
    let before = page.text("#address");
    let long = "\u{fc}".repeat(43);
    for name in [".", "..", "a/../b", " .. ", &long] {
        assert_eq!(enter(&page, name), "/room/echo", "{name} is no room");
        assert_eq!(
            page.0.evaluate("document.querySelector('#room').validity.customError"),
            true,
            "{name}"
        );
    }
    assert_eq!(page.text("#address"), before);
    // Back to the previous room.
    page.wait_live();
    page.0.evaluate("history.back()");
    page.wait_for_message("You are in ....");
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn what_others_send_is_text_and_never_markup(browser: &Browser) {
    const MARKUP: &str =
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "room/lobby");
    let mut client = join(server.address, "/room/lobby");
    let long_name = "n".repeat(100);
    let texts = [
        MARKUP.to_owned(),
        json!({"name": MARKUP, "text": MARKUP}).to_string(),
        json!({"name": 7, "text": "seven"}).to_string(),
        json!({"name": long_name, "text": ""}).to_string(),
        "null".to_owned(),
        String::new(),
    ];
    for text in &texts {
        client.send(Message::text(text)).expect("it is sent");
    }
    client.send(Message::binary(vec![0; 1234])).expect("it is sent");
    client.send(Message::text("the end")).expect("it is sent");
    page.wait_for_message("the end");
    let markup: String = MARKUP.chars().take(40).collect();
    let expected = [
        entry("", "another client", MARKUP),
        entry("", &markup, MARKUP),
        entry("", "another client", &texts[2]),
        entry("", &long_name[..40], ""),
        entry("", "another client", "null"),
        entry("", "another client", ""),
        entry("", "another client", "1,234 bytes"),
        entry("", "another client", "the end"),
    ];
    assert_eq!(page.messages(), expected);
    assert_eq!(page.0.evaluate("document.querySelectorAll('#log img, #log script').length"), 0);
    assert_eq!(page.0.evaluate("document.title"), "lobby · Windlass");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The count comes from the server, and a client that is no page is counted too.
pub(crate) fn members_are_counted_and_their_coming_is_told(browser: &Browser) {
    let server = Server::start(&["--workers", "3"]);
    let devtools = browser.connect();
    let ada = Page::open(&devtools, server.address, "room/attic");
    ada.0.wait("document.querySelector('#members').textContent === 'Only you are here'");
    let mut client = join(server.address, "/room/attic");
    ada.0.wait("document.querySelector('#members').textContent === '2 members'");
    let grace = Page(devtools.empty_tab());
    let grace_in_lobby = format!("http://{}/", server.address);
    grace.0.navigate(&grace_in_lobby);
    grace.wait_connected();
    grace.set_name("Grace");
    grace.wait_live();
    grace.fill("#room", "attic");
    grace.0.press("Enter");
    ada.wait_for_message("Grace joined.");
    for page in [&ada, &grace] {
        page.0.wait("document.querySelector('#members').textContent === '3 members'");
    }
    let own = |(kind, _, what): &Entry| kind == "note" && what.contains("Grace");
    assert_eq!(grace.entries().iter().filter(|entry| own(entry)).count(), 0, "not to herself");
    grace.fill("#room", "cellar");
    grace.0.press("Enter");
    ada.wait_for_message("Grace left.");
    ada.0.wait("document.querySelector('#members').textContent === '2 members'");
    // A page cannot be told a count by a peer, and a member that is no page gets messages only.
    client.send(Message::text(r#"{"members":99,"joined":["Eve"],"left":[]}"#)).expect("it is sent");
    client.send(Message::text("the end")).expect("it is sent");
    ada.wait_for_message("the end");
    assert_eq!(ada.text("#members"), "2 members");
    ada.say("bye");
    let Ok(Message::Text(text)) = client.read() else { panic!("the message comes as text") };
    assert!(text.contains("bye"), "no notice comes before: {text}");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// In a cluster the count is that of one server.
pub(crate) fn in_a_cluster_the_members_at_this_server_are_counted(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "room/attic");
    page.0.wait("document.querySelector('#members').textContent === 'Only you are here'");
    // As `page::html` writes it for a node of a cluster.
    page.0.evaluate("document.body.dataset.cluster = 'on'");
    let says = |count: &str| {
        let text = json!(format!("{count} at this server"));
        page.0.wait(&format!("document.querySelector('#members').textContent === {text}"));
    };
    let client = join(server.address, "/room/attic");
    says("2 members");
    page.save("wide-cluster", crate::appearance::WIDE);
    page.save("phone-cluster", crate::appearance::PHONE);
    drop(client);
    says("Only you are here");
}

/// A name that was chosen is that of new tabs. The tabs of a guest are told of each other.
pub(crate) fn each_tab_has_its_own_guest_and_all_have_a_chosen_name(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let open = || Page::open(&devtools, server.address, "");
    let name = |page: &Page| {
        let name = page.0.evaluate("document.querySelector('#name').value");
        name.as_str().expect("a text").to_owned()
    };
    let first = open();
    let guest = name(&first);
    assert!(guest.starts_with("guest "), "{guest}");
    let second = open();
    first.wait_for_message(&format!("{} joined.", name(&second)));
    // A tab that is opened by a script begins with a copy of the storage, as a duplicate does.
    first.0.evaluate("void (window.duplicate = open(location.href))");
    let of_duplicate = "duplicate.document.querySelector('#name')?.value";
    let told = "[...document.querySelectorAll('#log .what')].map((what) => what.textContent)";
    first.0.wait(&format!("{told}.includes(`${{{of_duplicate}}} joined.`)"));
    let duplicate = first.0.evaluate(of_duplicate);
    assert!(duplicate != *guest && duplicate != *name(&second), "{duplicate}");
    // Its own name outlives a load.
    first.wait_live();
    first.0.reload();
    first.wait_connected();
    assert_eq!(name(&first), guest);
    first.set_name("Ada");
    // The change of a field is complete when another one gets the focus.
    first.say("hello");
    assert_eq!(name(&open()), "Ada");
    second.wait_live();
    second.0.reload();
    assert!(name(&second).starts_with("guest "), "{}", name(&second));
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn a_server_that_goes_and_comes_back_is_noticed(browser: &Browser) {
    let forwarder = Forwarder::new();
    let server = Server::start(&["--drain-timeout", "60"]);
    forwarder.forward_to(Some(server.address));
    let devtools = browser.connect();
    let (ada, grace) = (
        Page::open(&devtools, forwarder.address, ""),
        Page::open(&devtools, forwarder.address, ""),
    );
    ada.say("before");
    grace.wait_for_message("before");

    forwarder.forward_to(None);
    let (status, _) = server.stop(Signal::TERM);
    assert!(status.success(), "{status}");
    for page in [&ada, &grace] {
        page.0.wait("document.querySelector('#state').dataset.state === 'lost'");
        let (kind, _, what) = page.entries().pop().expect("there is an entry");
        assert_eq!((&*kind, &*what), ("note", "The server is going away."));
    }
    assert_eq!(ada.0.evaluate("document.querySelector('#send').disabled"), true);
    ada.say("into the void");
    assert_eq!(ada.messages().len(), 1, "what cannot be sent is not shown as if it had been");
    assert_eq!(
        ada.0.evaluate("document.querySelector('#text').value"),
        "into the void",
        "it is kept"
    );
    ada.save("phone-lost", crate::appearance::PHONE);

    let server = Server::start(&[]);
    forwarder.forward_to(Some(server.address));
    // One user reconnects by hand, the other one waits.
    ada.0.evaluate("document.querySelector('#retry').click()");
    ada.wait_connected();
    grace.wait_connected();
    grace.say("after");
    ada.wait_for_message("after");
    ada.say("the same");
    grace.wait_for_message("the same");
    let complaints = devtools.complaints();
    let expected = |complaint: &&String| !complaint.contains("WebSocket connection to");
    assert_eq!(complaints.iter().filter(expected).count(), 0, "{complaints:#?}");
    server.stop_cleanly();
}
