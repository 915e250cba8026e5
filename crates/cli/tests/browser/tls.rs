//! The page by https, which opens its WebSockets by wss.

use crate::{
    chromium::Browser,
    harness::Server,
    page::{Page, entry},
};

pub(crate) fn the_page_works_by_https(browser: &Browser) {
    let command = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0", "--tls-self-signed"];
    let server = Server::of_several(crate::harness::windlass(&command), 2);
    let devtools = browser.connect();
    let open = |rest: &str| {
        let page = Page(devtools.open(&format!("https://{}/{rest}", server.address)));
        page.wait_connected();
        page
    };
    let (ada, grace) = (open(""), open("room/lobby"));
    ada.set_name("Ada");
    ada.say("Is anybody here?");
    grace.wait_for_message("Is anybody here?");
    assert_eq!(grace.messages(), [entry("", "Ada", "Is anybody here?")]);
    let command = ada.text("#command");
    assert!(command.contains(&format!("wss://{}/echo", server.address)), "{command}");
    assert_eq!(devtools.complaints(), [""; 0]);
}
