//! The page in a tab, used as by a person.

use std::net::SocketAddr;

use serde_json::json;

use crate::devtools::{Devtools, Tab};

/// An entry of the chat: its kind (`own`, `note` or empty), its author, and its text.
pub(crate) type Entry = (String, String, String);

pub(crate) fn entry(kind: &str, who: &str, what: &str) -> Entry {
    (kind.to_owned(), who.to_owned(), what.to_owned())
}

/// A tab with the page.
pub(crate) struct Page(pub(crate) Tab);

impl Page {
    /// Opens the page at an address that ends with `rest`, such as `#lobby`, and waits until the
    /// chat is connected.
    pub(crate) fn open(devtools: &Devtools, server: SocketAddr, rest: &str) -> Self {
        let page = Self(devtools.open(&format!("http://{server}/{rest}")));
        page.wait_connected();
        page
    }

    pub(crate) fn wait_connected(&self) {
        self.0.wait("document.querySelector('#state').dataset.state === 'open'");
    }

    /// Waits until the live view of the room is connected. A test that leaves the room waits for it
    /// first: Chromium warns of a WebSocket that ends before it is open.
    pub(crate) fn wait_live(&self) {
        self.0.wait("document.querySelector('#members').textContent");
    }

    /// Replaces the text of a field by typing.
    pub(crate) fn fill(&self, field: &str, text: &str) {
        self.0.evaluate(&format!(
            "document.querySelector('{field}').focus(); document.querySelector('{field}').select()"
        ));
        self.0.type_text(text);
    }

    pub(crate) fn set_name(&self, name: &str) {
        self.fill("#name", name);
    }

    /// Types a message and sends it with the Enter key.
    pub(crate) fn say(&self, text: &str) {
        self.fill("#text", text);
        self.0.press("Enter");
    }

    /// Waits until a message of this author is shown.
    pub(crate) fn wait_for_message(&self, text: &str) {
        let text = json!(text);
        self.0.wait(&format!(
            "[...document.querySelectorAll('#log .what')]\
                 .some((what) => what.textContent === {text})"
        ));
    }

    /// Returns all entries of the chat, without notes about the connection.
    pub(crate) fn messages(&self) -> Vec<Entry> {
        self.entries().into_iter().filter(|(kind, ..)| kind != "note").collect()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entries = self.0.evaluate(
            "[...document.querySelectorAll('#log > *')].map((entry) => [
                entry.className.replace('entry', '').trim(),
                entry.querySelector('b')?.textContent ?? '',
                entry.querySelector('.what').textContent,
            ])",
        );
        serde_json::from_value(entries).expect("three texts each")
    }

    pub(crate) fn text(&self, element: &str) -> String {
        let text = self.0.evaluate(&format!("document.querySelector('{element}').textContent"));
        text.as_str().unwrap_or_else(|| panic!("{element} has no text")).to_owned()
    }

    /// Returns a number in the format of the page.
    pub(crate) fn number(&self, element: &str) -> u64 {
        let text = self.text(element);
        text.replace(',', "")
            .parse()
            .unwrap_or_else(|_| panic!("{element} shows no number: {text}"))
    }
}
