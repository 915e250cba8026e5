//! The appearance of the page, and its use without a mouse. Screenshots for people are in
//! `tmp/page` of the target directory.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use serde_json::json;

use crate::{chromium::Browser, devtools::Screen, harness::Server, page::Page};

pub(crate) const WIDE: Screen = Screen { width: 1280, height: 860, phone: false, dark: false };
pub(crate) const PHONE: Screen = Screen { width: 375, height: 740, phone: true, dark: false };
const SMALL: Screen = Screen { width: 320, height: 568, phone: true, dark: false };
const LANDSCAPE: Screen = Screen { width: 812, height: 375, phone: true, dark: false };

/// The screens on which the page must fit.
pub(crate) const SCREENS: [(&str, Screen); 4] =
    [("wide", WIDE), ("phone", PHONE), ("small", SMALL), ("landscape", LANDSCAPE)];

impl Page {
    /// Writes a screenshot of the page on this screen.
    pub(crate) fn save(&self, name: &str, screen: Screen) -> Vec<u8> {
        self.0.show_on(screen);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
        let picture = self.0.screenshot();
        fs::create_dir_all(&folder).expect("the target directory can be written to");
        fs::write(folder.join(format!("{name}.png")), &picture).expect("it can be written");
        picture
    }
}

/// Returns a description of each text with too little contrast to its background by WCAG 2.2
/// (success criterion 1.4.3). Colours must be opaque.
const PALE_TEXTS: &str = "(() => {
    const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).map((part) => {
            const c = part / 255;
            return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const isClear = (color) => color === 'rgba(0, 0, 0, 0)' || color === 'transparent';
    const ground = (element) => {
        const color = getComputedStyle(element).backgroundColor;
        return isClear(color) && element.parentElement ? ground(element.parentElement) : color;
    };
    const isText = (node) => node.nodeType === 3 && node.data.trim();
    const hasText = (element) => [...element.childNodes].some(isText);
    const shown = (element) =>
        element.checkVisibility() && (hasText(element) || element.matches('input'));
    return [...document.body.querySelectorAll('*')].filter(shown).flatMap((element) => {
        const [text, behind] = [getComputedStyle(element).color, ground(element)];
        const [dark, light] = [luminance(text), luminance(behind)].sort((a, b) => a - b);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio >= 4.5) return [];
        return [`${element.tagName} ${element.id} ${text} on ${behind}: ${ratio}`];
    });
})()";

/// The tiles that are too narrow for long values, in a section from that of a small telephone to
/// the widest. The next status replaces the values.
const NARROW_TILES: &str = "(() => {
    const server = document.querySelector('#server');
    const texts = { connections: '100,000', rate: '9,999,999', bytes: '3.55 MB/s', lag: '1999.9 ms',
        slow: '100,000' };
    for (const [name, text] of Object.entries(texts)) {
        document.querySelector(`#live-${name}`).textContent = text;
    }
    const narrow = [];
    for (let width = 280; width <= 720; width += 4) {
        server.style.width = `${width}px`;
        for (const part of document.querySelectorAll('.tiles *')) {
            if (part.scrollWidth > part.clientWidth) narrow.push(`${part.textContent} at ${width}`);
        }
    }
    server.style.width = '';
    return narrow;
})()";

pub(crate) fn it_fits_wide_and_narrow_in_light_and_dark(browser: &Browser) {
    let server = Server::start(&["--workers", "3"]);
    let devtools = browser.connect();
    let (ada, grace) =
        (Page::open(&devtools, server.address, ""), Page::open(&devtools, server.address, ""));
    let long = format!("room/{}", "a-long-name-without-spaces-".repeat(2));
    let _elsewhere = Page::open(&devtools, server.address, &long);
    ada.set_name("Ada");
    grace.set_name("Grace");
    converse(&ada, &grace);
    ada.fill("#seconds", "3");
    ada.0.press("Enter");
    ada.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
    ada.0.evaluate("document.activeElement.blur()");
    ada.0.wait("document.querySelectorAll('#rooms a[href]').length === 2");
    let mut pictures = Vec::new();
    for (name, screen) in SCREENS {
        for (scheme, dark) in [("light", false), ("dark", true)] {
            let name = format!("{name}-{scheme}");
            pictures.push(ada.save(&name, Screen { dark, ..screen }));
            let root = ada.0.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]",
            );
            assert_eq!(root, json!([screen.width, screen.width]), "{name}: nothing sticks out");
            let texts = ada.0.evaluate("document.querySelectorAll('label, dt, dd, .what').length");
            assert!(texts.as_u64() > Some(20), "{name}: there is something to look at");
            assert_eq!(ada.0.evaluate(PALE_TEXTS), json!([]), "{name}: texts can be read");
            assert_eq!(ada.0.evaluate(NARROW_TILES), json!([]), "{name}: values fit");
        }
    }
    pictures.sort();
    pictures.dedup();
    assert_eq!(pictures.len(), 8, "each looks different");
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn converse(ada: &Page, grace: &Page) {
    let address = "https://example.org/a/long/address/without/spaces/offers/no/place/to/break/it";
    let lines = [
        (ada, grace, "Good morning! Is the new build up?"),
        (grace, ada, "Since nine. The long run has just ended, without a single failure."),
        (ada, grace, address),
        (grace, ada, "Got it."),
    ];
    for (speaker, listener, line) in lines {
        speaker.say(line);
        listener.wait_for_message(line);
    }
}

/// What has moved since the page was opened, as the browser tells it.
const MOVED: &str = "new Promise((resolve) => {
    const moved = [];
    const place = ({ x, y, width, height }) => [x, y, width, height];
    const name = (node) => node?.id || node?.outerHTML?.slice(0, 60) || node?.nodeName;
    const source = ({ node, previousRect, currentRect }) =>
        `${name(node)} from ${place(previousRect)} to ${place(currentRect)}`;
    const observer = new PerformanceObserver((list) => take(list.getEntries()));
    const take = (entries) => entries.forEach((entry) => {
        moved.push(`${Math.round(entry.startTime)} ms: ${entry.sources.map(source).join('; ')}`);
    });
    observer.observe({ type: 'layout-shift', buffered: true });
    // Two frames later what has been is told.
    const done = () => { take(observer.takeRecords()); resolve(moved); };
    requestAnimationFrame(() => requestAnimationFrame(done));
})";

pub(crate) fn nothing_moves_while_it_is_used(browser: &Browser) {
    // A fact that is not known yet has its line already.
    const WITHOUT_FACTS: &str = "(() => {
        const top = () => document.querySelector('#echo').getBoundingClientRect().top;
        const before = top();
        document.querySelectorAll('.fact').forEach((fact) => { fact.textContent = ''; });
        return before - top();
    })()";
    let server = Server::start(&[]);
    let devtools = browser.connect();
    for screen in [WIDE, PHONE] {
        let grace = Page::open(&devtools, server.address, "");
        let ada = Page(devtools.empty_tab());
        ada.0.show_on(screen);
        ada.0.navigate(&format!("http://{}/", server.address));
        ada.wait_connected();
        converse(&ada, &grace);
        ada.fill("#seconds", "1");
        ada.0.press("Enter");
        ada.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
        assert_eq!(ada.0.evaluate(MOVED), json!([]), "{screen:?}");
        assert_eq!(ada.0.evaluate(WITHOUT_FACTS), json!(0), "{screen:?}");
    }
}

/// The browser may show what it has before the script has come.
pub(crate) fn nothing_moves_when_the_script_comes_late(browser: &Browser) {
    const PAINTED: &str = "new Promise(function look(resolve) {
        if (performance.getEntriesByType('paint').length > 0) resolve();
        else requestAnimationFrame(() => look(resolve));
    })";
    let devtools = browser.connect();
    for screen in [WIDE, PHONE] {
        let (address, script) = page_without_its_script();
        let tab = devtools.empty_tab();
        tab.show_on(screen);
        tab.call("Page.navigate", json!({"url": format!("http://{address}/")}));
        tab.wait("document.querySelector('#deflate')");
        tab.evaluate(PAINTED);
        script.send(()).expect("the server waits for it");
        tab.wait(
            "document.querySelector('#parts #busiest')
                ?.checkVisibility({ visibilityProperty: true })",
        );
        assert_eq!(tab.evaluate(MOVED), json!([]), "{screen:?}");
    }
}

/// Serves the page, up to its script, and the rest after a message. Its threads end with the
/// process.
fn page_without_its_script() -> (SocketAddr, mpsc::Sender<()>) {
    const PAGE: &str = include!("../../src/page/parts.in");
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || -> io::Result<()> {
                let mut request = [0; 4096];
                let length = stream.read(&mut request)?;
                if !request[..length].starts_with(b"GET / ") {
                    return Ok(());
                }
                let (page, script) = PAGE.split_once("<script ").expect("it has a script");
                let length = PAGE.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n"
                );
                stream.write_all(format!("{head}{page}").as_bytes())?;
                // Without the test nobody waits for the rest.
                let _ = receiver.lock().expect("nobody panics with it").recv();
                stream.write_all(format!("<script {script}").as_bytes())
            });
        }
    });
    (address, sender)
}

pub(crate) fn it_can_be_used_with_the_keyboard_alone(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    let mut visited = Vec::new();
    // The link of the busiest room is there.
    page.0.wait("document.querySelectorAll('#rooms a[href]').length === 1");
    for _ in 0..15 {
        page.0.press("Tab");
        visited.push(page.0.evaluate("document.activeElement.id"));
        let outline = page.0.evaluate("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid", "{visited:?}: where the focus is can be seen");
    }
    let order = [
        "load-start",
        "live-graph",
        "busiest",
        "name",
        "room",
        "enter",
        "log",
        "text",
        "send",
        "link",
        "size",
        "depth",
        "seconds",
        "start",
        "run-graph",
    ];
    assert_eq!(json!(visited), json!(order));
}

pub(crate) fn every_control_has_a_name_and_a_state(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    let tree = page.0.call("Accessibility.getFullAXTree", json!({}));
    let nodes = tree["nodes"].as_array().expect("a list");
    let of_role = |role: &str| -> Vec<&str> {
        let nodes =
            nodes.iter().filter(|node| node["ignored"] == false && node["role"]["value"] == role);
        nodes.map(|node| node["name"]["value"].as_str().unwrap_or_default()).collect()
    };
    assert_eq!(of_role("textbox"), ["Your name", "Room", "Message"]);
    assert_eq!(of_role("spinbutton"), ["Bytes", "In flight", "Seconds"]);
    assert_eq!(of_role("button"), ["Load the server", "Enter", "Send", "Start"]);
    assert_eq!(of_role("region"), ["Server, live", "Workers and rooms", "Chat", "Echo run"]);
    assert_eq!(of_role("log"), ["Messages"]);
    let live = "Messages per second, in and out, over the last two minutes";
    assert_eq!(of_role("image"), [live, "Messages per second during the run"]);
    assert_eq!(of_role("table").len(), 2);
    assert_eq!(of_role("status").len(), 4, "the server, its load, the chat's connection, the run");
    assert_eq!(page.0.evaluate("document.documentElement.lang"), "en");
}
