//! Where upgrades are taken, and what else there is.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use windlass_ws::handshake::{self, Rejection, Request, Upgrade};

use super::{Page, page::Prepared, response};

/// Where upgrades are taken, and which pages there are.
///
/// Paths are compared as they come, byte by byte: nothing is decoded, and `.` and `..` are names
/// like others, so that no two programs on the way can read a path differently. The query is left
/// out.
///
/// | request | answer |
/// |---|---|
/// | an upgrade where upgrades are taken | the application's |
/// | an upgrade elsewhere | 404, and the end |
/// | GET or HEAD of a page | the page, or 304; upgrades to something else than WebSocket are not minded |
/// | another method on a page | 405 |
/// | no upgrade where upgrades are taken and no page is | 426 for GET, else 405, and the end |
/// | `OPTIONS *` | 204, with the methods that there are |
/// | anything else | 404 |
///
/// A connection of HTTP/1.1 is kept for the next request unless the client wants it closed; but not
/// after a request with a body, which is never read, nor after [`requests_max`](Self::requests_max)
/// requests. HTTP/1.0 gets one answer.
#[derive(Clone, Debug)]
#[must_use]
pub struct Routes {
    is_everywhere: bool,
    exact: BTreeSet<Box<str>>,
    /// Each ends in a slash.
    prefixes: Vec<Box<str>>,
    pages: BTreeMap<Box<str>, Prepared>,
    /// Those of all paths below one, which ends in a slash.
    page_prefixes: Vec<(Box<str>, Prepared)>,
    not_found: Cow<'static, str>,
    requests_max: u32,
    waiting_bytes_max: usize,
}

/// What has happened on a connection before a request.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Requests that were answered before.
    pub requests: u32,
    /// Bytes of answers that the client has not taken yet.
    pub waiting_bytes: usize,
    /// The time of day, for the Date.
    pub now: SystemTime,
}

/// What is next on a connection.
#[derive(Clone, Copy, Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made, and a box would be an allocation for each handshake"
)]
pub enum Next<'a> {
    /// Nothing was answered: the request is an upgrade, to a path where upgrades are taken.
    Upgrade(Upgrade<'a>),
    /// The request was answered, and another one may follow.
    Request,
    /// The request was answered. Whatever follows it is not to be read as a request, and the
    /// connection is to be closed once the answer is sent.
    Close,
}

impl Default for Routes {
    /// Upgrades everywhere.
    fn default() -> Self {
        Self::everywhere()
    }
}

impl Routes {
    /// Upgrades are taken nowhere, and there is no page.
    pub const fn new() -> Self {
        Self {
            is_everywhere: false,
            exact: BTreeSet::new(),
            prefixes: Vec::new(),
            pages: BTreeMap::new(),
            page_prefixes: Vec::new(),
            not_found: Cow::Borrowed(NOT_FOUND),
            requests_max: 100,
            waiting_bytes_max: 256 * 1024,
        }
    }

    /// Upgrades are taken on every path, and there is no page.
    pub const fn everywhere() -> Self {
        let mut routes = Self::new();
        routes.is_everywhere = true;
        routes
    }

    /// The same with upgrades on this path (`/echo`), on those that it is the beginning of
    /// (`/chat/*`: `/chat/` too, `/chat` not), or on all (`*`). The path may be a page as well.
    ///
    /// # Panics
    /// When it is none of these: it has a `*` elsewhere, does not begin with a slash, or has a
    /// character that no path has.
    pub fn upgrade(mut self, pattern: &str) -> Self {
        let is_prefix = pattern.ends_with("/*");
        let path = if is_prefix { &pattern[..pattern.len() - 1] } else { pattern };
        assert!(
            pattern == "*" || (is_path(path) && !path.contains('*')),
            "an upgrade path is /a/path, /a/prefix/* or *, and {pattern:?} is not"
        );
        if pattern == "*" {
            self.is_everywhere = true;
        } else if is_prefix {
            self.prefixes.push(path.into());
        } else {
            self.exact.insert(path.into());
        }
        self
    }

    /// The same with a page at this path, or at those that it is the beginning of (`/room/*`:
    /// `/room/` too, `/room` not), in place of the one that was there. A path of its own goes
    /// before a beginning, a longer one before a shorter.
    ///
    /// # Panics
    /// When the path does not begin with a slash or has a character that no path has; when a header
    /// of the page cannot be sent.
    pub fn page(mut self, path: &str, page: Page) -> Self {
        assert!(
            is_path(path),
            "a page's path begins with a slash and has no query, and {path:?} is not such a path"
        );
        let page = page
            .prepare()
            .unwrap_or_else(|error| panic!("the page at {path} cannot be sent: {error}"));
        match path.strip_suffix('*').filter(|prefix| prefix.ends_with('/')) {
            Some(prefix) => {
                self.page_prefixes.retain(|(other, _)| **other != *prefix);
                self.page_prefixes.push((prefix.into(), page));
            }
            None => _ = self.pages.insert(path.into(), page),
        }
        self
    }

    /// The same with another text for a 404, which says where there is something, for instance. A
    /// line's end is added.
    pub fn not_found(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.not_found = text.into();
        self
    }

    fn page_at(&self, path: &str) -> Option<&Prepared> {
        let below = || self.page_prefixes.iter().filter(|(prefix, _)| path.starts_with(&**prefix));
        let longest = || below().max_by_key(|(prefix, _)| prefix.len()).map(|(_, page)| page);
        self.pages.get(path).or_else(longest)
    }

    /// The same with so many requests on one connection; one is always answered. Default: 100.
    pub const fn requests_max(mut self, requests: u32) -> Self {
        self.requests_max = requests;
        self
    }

    /// The same with so many bytes of answers that may wait to be sent before a request is the
    /// connection's last: who sends requests and does not read makes the server hold at most so
    /// many, and one page. Default: 256 KiB.
    pub const fn waiting_bytes_max(mut self, bytes: usize) -> Self {
        self.waiting_bytes_max = bytes;
        self
    }

    /// Whether upgrades are taken on this path.
    #[must_use]
    pub fn takes_upgrades(&self, path: &str) -> bool {
        self.is_everywhere
            || self.exact.contains(path)
            || self.prefixes.iter().any(|prefix| path.starts_with(&**prefix))
    }

    /// The request as an upgrade, if it is one as it must be, to a path where upgrades are taken.
    /// Others are to be [answered](Self::answer).
    #[inline]
    pub(crate) fn upgrade_of<'a>(&self, request: &Request<'a>) -> Option<Upgrade<'a>> {
        if self.takes_upgrades(request.path()) { request.upgrade().ok() } else { None }
    }

    /// Answers a request, or says that it is an upgrade.
    pub fn answer<'a>(
        &self,
        request: &Request<'a>,
        served: &Served,
        out: &mut Vec<u8>,
    ) -> Next<'a> {
        if request.path() == "*" {
            return self.options(request, served, out);
        }
        let page = self.page_at(request.path());
        let takes_upgrades = self.takes_upgrades(request.path());
        match request.upgrade() {
            Ok(upgrade) if takes_upgrades => return Next::Upgrade(upgrade),
            Err(rejection) if takes_upgrades && (page.is_none() || is_of_an_upgrade(rejection)) => {
                return reject(rejection, request, served, out);
            }
            Ok(_) => return self.text(404, &self.not_found, request, served, true, out),
            Err(rejection) if is_of_an_upgrade(rejection) => {
                return self.text(404, &self.not_found, request, served, true, out);
            }
            Err(Rejection::UnknownMethod) => {
                return self.text(501, "unknown method", request, served, false, out);
            }
            Err(_) => {}
        }
        let Some(page) = page else {
            return self.text(404, &self.not_found, request, served, false, out);
        };
        if !matches!(request.method(), "GET" | "HEAD") {
            return self.text(405, "only GET and HEAD are allowed", request, served, false, out);
        }
        // It has no meaning, and is how a second request is hidden from a proxy (RFC 9110 section
        // 9.3.1).
        if request.body() != handshake::Body::None {
            return self.text(400, "a request for a page has no body", request, served, true, out);
        }
        let is_last = self.is_last(request, served);
        page.write(request, is_last, served.now, out);
        if is_last { Next::Close } else { Next::Request }
    }

    /// Answers `OPTIONS *`, which asks for what the server can (RFC 9110 section 9.3.7). No other
    /// request has that target.
    fn options<'a>(&self, request: &Request<'_>, served: &Served, out: &mut Vec<u8>) -> Next<'a> {
        let is_last = self.is_last(request, served);
        response::start(204, served.now, out);
        out.extend_from_slice(b"Allow: GET, HEAD, OPTIONS\r\n");
        response::finish(is_last, b"", out);
        if is_last { Next::Close } else { Next::Request }
    }

    /// Whether the connection ends with this request.
    fn is_last(&self, request: &Request<'_>, served: &Served) -> bool {
        request.is_http_1_0()
            || request.body() != handshake::Body::None
            || served.requests.saturating_add(1) >= self.requests_max
            || served.waiting_bytes >= self.waiting_bytes_max
            || wants_close(request)
    }

    fn text<'a>(
        &self,
        status: u16,
        text: &str,
        request: &Request<'_>,
        served: &Served,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Next<'a> {
        let is_last = is_last || self.is_last(request, served);
        response::start(status, served.now, out);
        if status == 405 {
            out.extend_from_slice(b"Allow: GET, HEAD\r\n");
        }
        response::text_headers(text.len(), out);
        response::finish(is_last, b"", out);
        if request.method() != "HEAD" {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
        }
        if is_last { Next::Close } else { Next::Request }
    }
}

const NOT_FOUND: &str = "there is nothing here";

/// Whether the request asks for a WebSocket, though not as it must. HTTP/1.0 cannot ask (RFC 9110
/// section 7.8).
const fn is_of_an_upgrade(rejection: Rejection) -> bool {
    use Rejection::{HttpVersion, MethodNotAllowed, NotAnUpgrade, UnknownMethod};
    !matches!(rejection, NotAnUpgrade | MethodNotAllowed | UnknownMethod | HttpVersion)
}

/// Answers as the handshake does.
fn reject<'a>(
    rejection: Rejection,
    request: &Request<'_>,
    served: &Served,
    out: &mut Vec<u8>,
) -> Next<'a> {
    let start = out.len();
    response::reject(rejection, served.now, out);
    if request.method() == "HEAD" {
        response::without_body(out, start);
    }
    Next::Close
}

/// Whether the client wants no further answer on this connection (RFC 9112 section 9.6).
fn wants_close(request: &Request<'_>) -> bool {
    let connection =
        request.headers().filter(|header| header.name.eq_ignore_ascii_case("Connection"));
    connection
        .flat_map(|header| header.value.split(|&byte| byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
}

#[cfg(test)]
mod tests;
