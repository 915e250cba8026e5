//! The page for browsers: a live view of the server, a chat and an echo test. It is one file
//! without external resources, which `parts.in` puts together.
//!
//! A room is a path: `/room/lobby` is the page, and a WebSocket on the same path is the room. The
//! page at `/` joins the lobby. An echo test opens `/echo`. All of these are relative to the page's
//! own address, because a proxy may add a path prefix. The page sends JSON text, `{"name": …,
//! "text": …}`. It shows messages of other clients in any other form as received.
//!
//! A WebSocket on `/live/lobby?as=NAME` gets the status of the server and the notices about the
//! members of the room. Only the server sends there, so no other client can fake them. One on
//! `/load` is a run of `windlass load` against the server (`serve/load_run.rs`).

use std::fmt::Write as _;

/// The page in HTML. Its own Content-Security-Policy allows its script and its style by their
/// hashes, connections to its own origin, and nothing else.
const INDEX: &str = include!("parts.in");

/// The element with what the server tells its page.
const BODY: &str = "<body data-status=\"on\" data-workers=\"1\" data-name-max=\"256\" \
                    data-cluster=\"off\" data-load=\"off\">";

/// Parts of the page that not all servers have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// The live view.
    pub(crate) status: bool,
    /// The part of it about the cluster.
    pub(crate) cluster: bool,
    /// The button that measures the server.
    pub(crate) load: bool,
}

/// Returns the page of a server with this number of workers. The name of a room has at most
/// `name_len_max` bytes in its path.
pub(crate) fn html(workers: u16, parts: Parts, name_len_max: u32) -> String {
    let (before, after) = INDEX.split_once(BODY).unwrap_or(("", INDEX));
    let mut page = before.to_owned();
    let Parts { status, cluster, load } = parts;
    let [status, cluster, load] = [status, cluster, load].map(|on| if on { "on" } else { "off" });
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<body data-status=\"{status}\" data-workers=\"{workers}\" \
         data-name-max=\"{name_len_max}\" data-cluster=\"{cluster}\" data-load=\"{load}\">{after}"
    );
    page
}

/// The part of the policy that a `<meta>` element cannot express, sent as a header
/// `Content-Security-Policy`: no other page may frame this one (CSP level 3, section 3.3).
pub(crate) const CONTENT_SECURITY_POLICY: &str = "frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use sha2::{Digest as _, Sha256};

    /// The text between two strings that occur once.
    fn between<'a>(start: &str, end: &str) -> &'a str {
        assert_eq!(INDEX.matches(start).count(), 1, "{start} occurs once");
        let (_, rest) = INDEX.split_once(start).expect("it occurs");
        rest.split_once(end).expect("it ends").0
    }

    fn source(text: &str) -> String {
        format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
    }

    #[test]
    fn the_policy_names_this_script_and_this_style() {
        let policy = between("http-equiv=\"Content-Security-Policy\" content=\"", "\"");
        for (directive, element) in [
            ("script-src", ("<script type=\"module\">", "</script>")),
            ("style-src", ("<style>", "</style>")),
        ] {
            let expected = format!("{directive} {};", source(between(element.0, element.1)));
            assert!(policy.contains(&expected), "after a change the policy needs `{expected}`");
        }
        assert!(policy.starts_with("default-src 'none';"));
        // A browser ignores this directive inside the page.
        assert!(
            !policy.contains("frame-ancestors")
                && CONTENT_SECURITY_POLICY.starts_with("frame-ancestors")
        );
    }

    #[test]
    fn nothing_comes_from_elsewhere() {
        // The only URL is the name of a namespace in the icon, which is never requested.
        let addresses: Vec<&str> =
            INDEX.match_indices("//").map(|(at, _)| &INDEX[at.saturating_sub(6)..at + 8]).collect();
        for address in addresses.iter().filter(|address| address.contains(':')) {
            assert!(address.contains("http://www.w3"), "{address}");
        }
        for attribute in [" src=", "@import", "url(", "innerHTML", " style=", " onclick=\""] {
            assert!(!INDEX.contains(attribute), "{attribute}");
        }
    }

    #[test]
    fn the_page_is_small() {
        assert!(INDEX.len() < 40 << 10, "{} bytes", INDEX.len());
    }

    #[test]
    fn the_page_knows_the_server() {
        let parts = Parts { status: true, cluster: false, load: false };
        assert_eq!(html(1, parts, 256), INDEX);
        let page = html(1024, Parts { status: false, ..parts }, 7);
        let body = "<body data-status=\"off\" data-workers=\"1024\" data-name-max=\"7\" \
                    data-cluster=\"off\" data-load=\"off\">\n<header>";
        assert!(page.contains(body));
        assert_eq!(page.len(), INDEX.len() + body.len() - BODY.len() - "\n<header>".len());
        let page = html(1, Parts { cluster: true, load: true, ..parts }, 256);
        assert!(page.contains(" data-cluster=\"on\" data-load=\"on\">\n<header>"));
    }
}
