//! The button that measures the server, and the part of the page itself in the figures.

use crate::{chromium::Browser, harness::Server, page::Page};

pub(crate) fn a_button_shows_what_the_server_can_do(browser: &Browser) {
    let server = Server::start(&["--workers", "2"]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.0.wait("document.querySelector('#live-rate').textContent !== '–'");
    page.0.evaluate("document.querySelector('#load-start').focus()");
    page.0.press("Space");
    page.0.wait("document.querySelector('#load-text').textContent.startsWith('Running')");
    assert_eq!(page.0.evaluate("document.querySelector('#load-start').disabled"), true);
    // The page's own two and the run's own, 50 that echo and 52 in a room; one has the results.
    page.0.wait("document.querySelector('#live-connections').textContent === '105'");
    page.0.wait(
        "document.querySelector('#rooms tbody').rows[0].textContent.match(/^load[0-9,]{4,}52$/)",
    );
    page.0.wait(
        "[...document.querySelector('#workers').tBodies[0].rows].every(({ cells }) => \
             cells[1].textContent.length > 3 && cells[2].textContent > 0)",
    );
    page.0.wait("document.querySelector('#load-text').textContent.startsWith('Echo: ')");
    let results = page.text("#load-text");
    assert!(results.ends_with("Every byte verified."), "{results}");
    page.0.wait("!document.querySelector('#load-start').disabled");
    page.0.wait("document.querySelector('#live-connections').textContent === '2'");
    assert_eq!(devtools.complaints(), [""; 0]);
}

/// The figures of an idle server are those of its page.
pub(crate) fn the_part_of_the_page_itself_is_named(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.0.wait(
        "document.querySelector('#live-connections').textContent === '2' && \
         document.querySelector('#live-own').textContent === '2' && \
         document.querySelector('#live-rate').textContent === '2'",
    );
    let hint = page.0.evaluate("document.querySelector('#live-own').parentElement.textContent");
    assert_eq!(hint, "2 of the connections and 2 of the messages/s are this page's own.");
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn a_server_for_others_has_no_button(browser: &Browser) {
    for (options, is_shown) in [(&[][..], true), (&["--host", "example.com"], false)] {
        let server = Server::start(options);
        let devtools = browser.connect();
        let page = Page::open(&devtools, server.address, "");
        let shown = page.0.evaluate("document.querySelector('#load-start').checkVisibility()");
        assert_eq!(shown, is_shown, "{options:?}");
    }
}
