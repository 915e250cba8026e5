//! The live view of the server.

use serde_json::json;

use crate::{
    chat::join,
    chromium::Browser,
    devtools::{Devtools, Screen},
    forwarder::Forwarder,
    harness::{Server, pattern},
    page::Page,
};
use rustix::process::Signal;
use tungstenite::Message;

/// Opens the page, and waits until it shows rates.
fn open(devtools: &Devtools, server: &Server, rest: &str) -> Page {
    let page = Page::open(devtools, server.address, rest);
    page.0.wait("document.querySelector('#live-rate').textContent !== '–'");
    page
}

impl Page {
    /// Returns the texts of a row of a table.
    fn row(&self, table: &str, index: usize) -> Vec<String> {
        let cells = self.0.evaluate(&format!(
            "[...document.querySelector('{table}').tBodies[0].rows[{index}].cells]\
             .map((cell) => cell.textContent)"
        ));
        serde_json::from_value(cells).expect("texts")
    }
}

/// Clients make messages at a known rate, and each figure is theirs.
pub(crate) fn the_figures_are_those_of_the_server(browser: &Browser) {
    let server = Server::start(&["--workers", "2"]);
    let devtools = browser.connect();
    let page = open(&devtools, &server, "");
    assert_eq!(page.text("#live-text"), "Live");
    assert!(page.text("#about").contains(&format!("version {}", env!("CARGO_PKG_VERSION"))));
    let rows = page.0.evaluate("document.querySelector('#workers').tBodies[0].rows.length");
    assert_eq!(rows, 2);
    let mut members: Vec<_> = (0..3).map(|_| join(server.address, "/room/busy")).collect();
    // With the page's own two.
    page.0.wait("document.querySelector('#live-connections').textContent === '5'");
    let workers = [page.row("#workers", 0), page.row("#workers", 1)];
    let open: u64 = workers.iter().map(|row| row[2].parse::<u64>().expect("a number")).sum();
    assert_eq!(open, 5, "{workers:?}");
    let payload = pattern(1, 1000);
    members[0].send(Message::binary(payload.clone())).expect("it is sent");
    for member in &mut members[1..] {
        assert_eq!(member.read().expect("it comes"), Message::binary(payload.clone()));
    }
    // Each worker copies its figures at a time of its own.
    page.0
        .wait("document.querySelector('#rooms tbody').rows[0].textContent.match(/^busy[0-9,]+3$/)");
    assert_eq!(page.row("#rooms", 0)[2], "3");
    assert_eq!(page.0.evaluate("document.querySelector('#rooms a').pathname"), "/room/busy");
    assert_eq!(page.text("#live-slow"), "0");
    let lag = page.text("#live-lag");
    assert!(lag.ends_with(" ms") || lag.ends_with(" µs"), "{lag}");
    let lines = page.0.evaluate("document.querySelectorAll('#live-plot polyline').length");
    assert_eq!(lines, 2, "in and out");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The pointer and the arrow keys tell the value at a time.
pub(crate) fn a_graph_tells_its_values(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.0.show_on(Screen { width: 1280, height: 860, phone: false, dark: false });
    page.fill("#seconds", "1");
    page.0.press("Enter");
    page.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
    let told = || page.text("#graph .told");
    assert!(!told().contains(':'), "{}", told());
    assert_eq!(page.text("#graph .left-x"), "0 s");
    assert_eq!(page.text("#graph .right-x"), "1 s");
    let place = page.0.evaluate(
        "(() => {
            const svg = document.querySelector('#graph svg');
            svg.scrollIntoView();
            const { x, y, width, height } = svg.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        })()",
    );
    let event = json!({"type": "mouseMoved", "x": place[0], "y": place[1]});
    page.0.call("Input.dispatchMouseEvent", event);
    page.0.wait("document.querySelector('#graph').dataset.told === 'yes'");
    let by_pointer = told();
    assert!(by_pointer.ends_with(" messages per second"), "{by_pointer}");
    let time = by_pointer.split(' ').next().unwrap_or_default().parse::<f64>().expect("a time");
    let nearest = page.0.evaluate(
        "[...document.querySelector('#graph .line').points].map(({ x }) => x / 100)
            .reduce((best, x) => Math.abs(x - 0.5) < Math.abs(best - 0.5) ? x : best)",
    );
    let nearest = nearest.as_f64().expect("there are points");
    assert!((nearest - time).abs() < 0.06, "{by_pointer}, and the nearest is at {nearest} s");
    page.0.evaluate("document.querySelector('#graph svg').focus()");
    page.0.press("ArrowLeft");
    assert!(told().starts_with("0") && told() != by_pointer, "{} after {by_pointer}", told());
    page.0.evaluate("document.querySelector('#graph svg').blur()");
    assert!(!told().contains(':'), "{}", told());
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The chat still counts its members.
pub(crate) fn without_status_the_page_has_no_live_view(browser: &Browser) {
    let server = Server::start(&["--no-status"]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.0.wait("document.querySelector('#members').textContent === 'Only you are here'");
    let shown = "[...document.querySelectorAll('section')].filter((one) => one.checkVisibility())
        .map((one) => one.id)";
    assert_eq!(page.0.evaluate(shown), json!(["chat", "echo"]));
    let mut live = join(server.address, "/live/lobby");
    let Ok(Message::Text(first)) = live.read() else { panic!("a notice comes") };
    assert!(first.starts_with("{\"joined\":"), "and no status: {first}");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The names of rooms and of members come from peers.
pub(crate) fn nothing_from_a_peer_is_markup_in_the_live_view(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = open(&devtools, &server, "");
    let markup = "%3Cimg%20src=x%20onerror=%22document.title='owned'%22%3E";
    let _room = join(server.address, &format!("/room/{markup}"));
    let _live = join(server.address, &format!("/live/lobby?as={markup}"));
    let shown = "<img src=x onerror=\"document.title='owned'\">";
    let text = json!(shown);
    page.0.wait(&format!(
        "[...document.querySelectorAll('#rooms a')].some((link) => link.textContent === {text})"
    ));
    let joined: String = shown.chars().take(40).collect();
    page.wait_for_message(&format!("{joined} joined."));
    assert_eq!(page.0.evaluate("document.querySelectorAll('img, #log script').length"), 0);
    assert_eq!(page.0.evaluate("document.title"), "lobby · Windlass");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The longest name that a room may have, of letters with six bytes each in the path.
pub(crate) fn the_link_of_a_room_with_a_long_name_leads_there(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = open(&devtools, &server, "");
    page.0.show_on(Screen { width: 1280, height: 860, phone: false, dark: false });
    let name = "\u{e9}".repeat(42);
    let path = format!("/room/{}", "%C3%A9".repeat(42));
    let mut client = join(server.address, &path);
    // The page would enter another room for this path.
    let _foreign = join(server.address, "/room/a:b");
    let link = |shown: &str| {
        let shown = json!(shown);
        format!(
            "[...document.querySelectorAll('#rooms a')]\
                 .find((link) => link.textContent === {shown})"
        )
    };
    page.0.wait(&format!("{} && {}", link(&name), link("a:b")));
    let long = page.0.evaluate(&format!(
        "(({{ pathname, title, parentElement: cell }}) =>
            [pathname, title, cell.scrollWidth > cell.clientWidth])({})",
        link(&name)
    ));
    assert_eq!(long, json!([path, name, true]), "its path, its title, and that it is cut");
    let foreign =
        page.0.evaluate(&format!("(({{ href, title }}) => [href, title])({})", link("a:b")));
    assert_eq!(foreign, json!(["", "/room/a:b"]));
    page.save("wide-long-name", crate::appearance::WIDE);
    page.save("phone-long-name", crate::appearance::PHONE);
    let there = Page::open(&devtools, server.address, path.trim_start_matches('/'));
    there.say("found");
    assert!(matches!(client.read(), Ok(Message::Text(text)) if text.contains("found")));
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// Returns all figures of the live view, and the number of points in its graph.
const FIGURES: &str = "[
    [...document.querySelectorAll('.live dd, .live tbody td, #live-cluster')]
        .map((figure) => figure.textContent).filter((text) => text !== '\u{2013}'),
    document.querySelectorAll('#rooms a[href], .bar i:not([hidden])').length,
    document.querySelector('#about').textContent + document.querySelector('#members').textContent,
    document.querySelector('#live-plot .line').points.numberOfItems,
]";

/// Shows rates again.
const IS_LIVE: &str = "document.querySelector('#live-text').textContent === 'Live'
    && document.querySelector('#live-rate').textContent !== '\u{2013}'
    && document.querySelector('#rooms a[href]')";

pub(crate) fn the_figures_of_a_lost_connection_go_and_come_back(browser: &Browser) {
    let forwarder = Forwarder::new();
    let server = Server::start(&["--workers", "2"]);
    forwarder.forward_to(Some(server.address));
    let devtools = browser.connect();
    let page = Page::open(&devtools, forwarder.address, "");
    page.0.wait(IS_LIVE);
    forwarder.forward_to(None);
    server.stop(Signal::TERM);
    page.0.wait("document.querySelector('#live-state').dataset.state === 'lost'");
    assert_eq!(page.0.evaluate(FIGURES), json!([[], 0, "", 0]));
    page.save("wide-lost", crate::appearance::WIDE);
    let server = Server::start(&["--workers", "2"]);
    forwarder.forward_to(Some(server.address));
    page.0.evaluate("document.querySelector('#retry').click()");
    page.0.wait(IS_LIVE);
    page.wait_live();
}

/// The chat may go on without it.
pub(crate) fn a_live_view_that_is_lost_alone_comes_back(browser: &Browser) {
    const SOCKETS: &str = "window.sockets = [];
        window.WebSocket = class extends WebSocket {
            constructor(address) { super(address); sockets.push(this); }
        };";
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page(devtools.empty_tab());
    page.0.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": SOCKETS}));
    page.0.navigate(&format!("http://{}/", server.address));
    page.0.wait(IS_LIVE);
    // The server refuses messages there, with a Close frame.
    page.0.evaluate("sockets.find(({ url }) => url.includes('/live/')).send('')");
    page.0.wait("document.querySelector('#live-state').dataset.state === 'lost'");
    assert_eq!(page.text("#state-text"), "Connected");
    page.0.wait(IS_LIVE);
    assert_eq!(page.0.evaluate("sockets.length"), 3);
    assert_eq!(devtools.complaints(), [""; 0]);
}
